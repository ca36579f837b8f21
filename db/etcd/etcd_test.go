package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestNoAnswerSaysWhere: an etcd that has not answered in time is named.
func TestNoAnswerSaysWhere(t *testing.T) {
	const server = "http://127.0.0.1:9"
	s, err := New(Options{Servers: []string{server}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Head(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), server) {
		t.Errorf("Head is %v", err)
	}
}
