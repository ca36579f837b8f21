package imagetag

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// A part of a tag's reference selects it, alone and beside other fields, in lists and watches.
func TestNamed(t *testing.T) {
	t.Parallel()
	tag := tags.New(reference.Reference{Host: "registry.example.com", Repository: "shop/cart", Tag: "V1.54-RC"})
	for text, want := range map[string]bool{
		"named=shop": true, "named=SHOP/Cart": true, "named=54-rc": true, "named=cart:v1": true, "named=": true, "named=ship": false,
		"named!=shop": false, "named!=ship": true, "named=shop,named=54": true, "named=shop,named=ship": false,
		"named=shop,repository=registry.example.com/shop/cart": true, "named=shop,repository=registry.example.com/shop": false,
		"named=shop,gone=true": false, "named=shop,gone!=true": true,
	} {
		field, err := fields.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		if field, err = field.Transform(ConvertFieldLabel); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for what, p := range map[string]fields.Selector{"": field, " (a copy)": field.DeepCopySelector()} {
			selected := Predicate(labels.Everything(), p)
			if is, err := selected.Matches(tag); err != nil || is != want {
				t.Errorf("%s%s: %t, %v", text, what, is, err)
			}
			selected.Field = selected.Field.DeepCopySelector()
			if is, _ := selected.Matches(tag); is != want {
				t.Errorf("%s%s, copied: %t", text, what, is)
			}
		}
	}
}

// Only what has the part in its name is read from the storage.
func TestNamedIsFoundByTheIndex(t *testing.T) {
	for text, want := range map[string]string{"named=Shop": "shop", "named!=shop": "", "named=": "", "gone=true": "", "gone=true,named=Cart": "cart"} {
		p := Predicate(labels.Everything(), fields.ParseSelectorOrDie(text))
		got := ""
		for _, field := range p.IndexFields {
			if of, ok := p.Field.(interface{ PartOf(string) (string, bool) }); ok {
				if part, ok := of.PartOf(field); ok {
					got += part
				}
			}
		}
		if got != want {
			t.Errorf("%s looks for %q in the index", text, got)
		}
	}
}
