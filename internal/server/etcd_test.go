package server

import "testing"

// TestEncrypted: what is warned of is what leaves the machine as plain text.
func TestEncrypted(t *testing.T) {
	for server, want := range map[string]bool{
		"https://10.0.0.1:2379": true, "http://10.0.0.1:2379": false, "http://etcd:2379": false, "10.0.0.1:2379": false, "etcd:2379": false,
		"http://127.0.0.1:2379": true, "http://127.8.0.1:2379": true, "http://[::1]:2379": true, "http://localhost:2379": true, "localhost:2379": true, "127.0.0.1:2379": true,
		"http://localhost.example.com:2379": false, "http://127.0.0.1.example.com:2379": false, "http://[2001:db8::1]:2379": false, "unix:///run/etcd.sock": true, "HTTP://etcd:2379": false,
		"": false, "::": false, "http://127.0.0.1:2379/": true,
	} {
		if got := encrypted(server, false); got != want {
			t.Errorf("%q: %v", server, got)
		}
	}
	for server, want := range map[string]bool{"etcd:2379": true, "http://etcd:2379": false} {
		if got := encrypted(server, true); got != want {
			t.Errorf("%q with certificates: %v", server, got)
		}
	}
}
