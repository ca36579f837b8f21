package sealed

import (
	"strings"
	"testing"
)

func TestBox(t *testing.T) {
	b := New([]byte("secret"), "one")
	text, err := b.Seal("value")
	if err != nil || strings.Contains(text, "value") {
		t.Fatalf("%q, %v", text, err)
	}
	var got string
	if err := New([]byte("secret"), "one").Open(text, &got); err != nil || got != "value" {
		t.Errorf("a replica reads %q, %v", got, err)
	}
	if again, _ := b.Seal("value"); again == text {
		t.Error("one value is sealed twice in one way")
	}
	for name, other := range map[string]*Box{"another secret": New([]byte("other"), "one"), "another purpose": New([]byte("secret"), "two")} {
		if other.Open(text, &got) == nil {
			t.Errorf("%s opens it", name)
		}
	}
	if _, err := b.Seal(func() {}); err == nil {
		t.Error("what is not JSON is sealed")
	}
	if b.Open(strings.Repeat("A", MaxText+1), &got) == nil {
		t.Error("a text of any length is read")
	}
}

// No text but the sealed one is opened.
func FuzzOpen(f *testing.F) {
	b := New([]byte("secret"), "one")
	good, err := b.Seal("value")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", good, good[1:], good + "A", strings.ToUpper(good), "not base64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got string
		// Each process of a fuzzer has sealed the value with a key of its own, so the text says
		// nothing.
		if err := b.Open(text, &got); err == nil && got != "value" {
			t.Errorf("%q is opened: %q", text, got)
		}
	})
}
