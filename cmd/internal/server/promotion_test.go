package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// Images that were verified are looked at once each, and all streams if there were too many. It
// begins with all.
func TestPromotions(t *testing.T) {
	t.Parallel()
	p := newPromotions()
	for range 3 {
		p.add("a")
	}
	p.add("b")
	var got []string
	for image, ok := p.next(); ok; image, ok = p.next() {
		got = append(got, image)
	}
	if slices.Sort(got); fmt.Sprint(got) != "[a b]" {
		t.Errorf("looked at %v", got)
	}
	for i := range maxPromotions + 5 {
		p.add(fmt.Sprint(i))
	}
	if image, ok := p.next(); !ok || image != "" {
		t.Errorf("of too many comes %q, %v", image, ok)
	}
	if image, ok := p.next(); ok {
		t.Errorf("after all streams comes %q", image)
	}

	ctx, cancel := context.WithCancel(t.Context())
	asked := promotedBy(func(image string) error {
		if image == "" {
			p.add("c")
			return nil
		}
		cancel() // a failure waits no longer than the server
		return errors.New(image)
	})
	if err := p.run(ctx, asked); err != nil {
		t.Error(err)
	}
}

type promotedBy func(image string) error

func (f promotedBy) Promote(_ context.Context, image string) error { return f(image) }
