package limits

import "testing"

func TestAddress(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:1234":              "192.0.2.1",
		"[::ffff:192.0.2.1]:1234":     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:1234": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::]:1":     "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1234":         "fe80::/64",
		"tidewaiter.local":            "tidewaiter.local",
		"":                            "",
	} {
		if got := Address(remote); got != want {
			t.Errorf("%q: %q, want %q", remote, got, want)
		}
	}
}
