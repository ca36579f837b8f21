package usage

import (
	"testing"
	"testing/synctest"
	"time"
)

// waitASecond lets a second of the bubble's fake time pass.
func waitASecond(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
}
