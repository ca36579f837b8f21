package promotion_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/controllers/promotion"
)

type streams struct{ asked []string }

func (s *streams) Promote(_ context.Context, image string) error {
	s.asked = append(s.asked, image)
	if len(s.asked) == 2 {
		return errors.New("the disk is full")
	}
	return nil
}

// It begins with all streams. A failure holds up no other image, and is tried again.
func TestPromotions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{}
		c := promotion.New(s)
		for _, image := range []string{"a", "a", "b"} {
			c.Add(image)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := c.Run(ctx); err != nil || !slices.Equal(s.asked, []string{"", "a", "b", "a"}) {
			t.Errorf("looked at %q, %v", s.asked, err)
		}
	})
}
