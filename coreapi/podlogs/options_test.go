package podlogs

import (
	"strings"
	"testing"
)

func TestKubeletEndpoint(t *testing.T) {
	for _, test := range []struct {
		template, hostIP, node string
		host, port, fails      string
	}{
		{template: "", hostIP: "10.0.0.7", host: "10.0.0.7", port: "10250"},
		{template: "", hostIP: "fd00::7", host: "fd00::7", port: "10250"},
		{template: "[{hostIP}]:10251", hostIP: "fd00::7", host: "fd00::7", port: "10251"},
		{template: "{nodeName}.nodes.example.com", node: "worker-1", host: "worker-1.nodes.example.com", port: "10250"},
		{template: "{nodeName}:443", node: "worker-1", host: "worker-1", port: "443"},
		{template: "gateway.example.com:8443", host: "gateway.example.com", port: "8443"},
		{template: "", hostIP: "", fails: "not an IP address"},
		{template: "{hostIP}", hostIP: "evil.example.com", fails: "not an IP address"},
		{template: "{nodeName}/..", node: "a", fails: "host"},
		{template: "{nodeName}", node: "a@b", fails: "host"},
		{template: "{nodeName}:0", node: "a", fails: "port"},
		{template: "{nodeName}:99999", node: "a", fails: "port"},
		{template: "https://{nodeName}", node: "a", fails: "port"},
	} {
		t.Run(test.template+" "+test.hostIP+" "+test.node, func(t *testing.T) {
			host, port, err := KubeletOptions{Address: test.template}.endpoint(test.hostIP, test.node)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got %s:%s, %v; want an error with %q", host, port, err, test.fails)
				}
				return
			}
			if err != nil || host != test.host || port != test.port {
				t.Errorf("got %s, %s, %v; want %s, %s", host, port, err, test.host, test.port)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		opts  Options
		fails string
	}{
		"relative directory":     {Options{Dir: "logs"}, "absolute"},
		"negative streams":       {Options{MaxStreams: -1}, "positive"},
		"certificate, no key":    {Options{Kubelet: &KubeletOptions{CertFile: "a"}}, "both"},
		"unreadable address":     {Options{Kubelet: &KubeletOptions{Address: "{hostIP}:x"}}, "port"},
		"missing authority file": {Options{Kubelet: &KubeletOptions{CAFile: "/nonexistent/ca.crt"}}, "ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewREST(nil, test.opts); err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("got %v, want an error with %q", err, test.fails)
			}
		})
	}
}
