package web_test

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// TestMain sets what New asks of a program.
func TestMain(m *testing.M) {
	utilruntime.ReallyCrash = false
	os.Exit(m.Run())
}
