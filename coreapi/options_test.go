package coreapi_test

import (
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

func TestServiceCIDRsAreChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ cidrs, problem string }{
		{"10.0.0.0/12", ""},
		{"fd00::/8", ""},
		{"fd00::/108,10.0.0.0/24", ""},
		{"10.0.0.0/11", "too large"},
		{"fd00::/108,0.0.0.0/0", "too large"},
		{"10.0.0.0/30", "fewer than 8"},
		{"10.0.0.0/24,10.1.0.0/24", "of one IP family"},
		{"10.0.0.0", "invalid CIDR"},
	} {
		err := coreapi.Options{ServiceCIDRs: strings.Split(test.cidrs, ","), Identity: "test"}.Validate()
		if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %v, want %q", test.cidrs, err, test.problem)
		}
	}
}
