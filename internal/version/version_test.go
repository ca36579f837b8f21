package version

import (
	"runtime/debug"
	"testing"
)

func TestBuilt(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}
	for want, info := range map[string]*debug.BuildInfo{
		"1.2.3":                        {Main: debug.Module{Version: "v1.2.3"}}, // by go install
		"0.0.0-dev":                    {Main: debug.Module{Version: "(devel)"}},
		"0.0.0-dev.0123456789ab":       {Main: debug.Module{Version: "(devel)"}, Settings: commit[:1]},
		"0.0.0-dev.0123456789ab.dirty": {Main: debug.Module{Version: "v0.0.0-20260101000000-0123456789ab+dirty"}, Settings: commit},
	} {
		if got := built(info); got != want {
			t.Errorf("%+v: %s, want %s", info, got, want)
		}
	}
}
