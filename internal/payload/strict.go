package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrMalformed is wrapped by every error of this package.
var ErrMalformed = errors.New("malformed")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

// Fields names the keys an object may have and what to do with the value of each.
type Fields map[string]func(value json.RawMessage) error

// Object reads data as exactly one JSON object. The function of each key in known is called once
// with its value. Any other key goes to unknown, or is an error when unknown is nil. These are
// errors: a repeated key, a key that equals a known one but for case or underscores, and anything
// after the object.
func Object(data []byte, known Fields, unknown func(key string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil {
		return malformed("not a JSON object: %w", err)
	} else if tok != json.Delim('{') {
		return malformed("not a JSON object")
	}
	seen := make(map[string]bool, len(known))
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return malformed("%w", err)
		}
		key, ok := tok.(string)
		if !ok {
			return malformed("object key is not a string")
		}
		if seen[key] {
			return malformed("key %q appears twice", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return malformed("value of %q: %w", key, err)
		}
		handle, isKnown := known[key]
		switch {
		case isKnown:
			if err := handle(value); err != nil {
				return inField(key, err)
			}
		case variantOf(known, key) != "":
			return malformed("key %q differs from %q only in its spelling", key, variantOf(known, key))
		case unknown == nil:
			return malformed("unknown key %q", key)
		default:
			if err := unknown(key, value); err != nil {
				return inField(key, err)
			}
		}
	}
	if _, err := dec.Token(); err != nil {
		return malformed("%w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return malformed("data after the JSON object")
	}
	return nil
}

func inField(key string, err error) error {
	if errors.Is(err, ErrMalformed) {
		return fmt.Errorf("%s: %w", key, err)
	}
	return malformed("%s: %w", key, err)
}

func variantOf(known Fields, key string) string {
	for k := range known {
		if k != key && folded(k) == folded(key) {
			return k
		}
	}
	return ""
}

// String returns a field handler that stores a JSON string. Null is not a string.
func String(into *string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if len(raw) == 0 || raw[0] != '"' {
			return malformed("not a string")
		}
		return json.Unmarshal(raw, into)
	}
}

// Bytes returns a field handler that stores a JSON string holding standard base64.
func Bytes(into *[]byte) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if len(raw) == 0 || raw[0] != '"' {
			return malformed("not a base64 string")
		}
		return json.Unmarshal(raw, into)
	}
}

// Int returns a field handler that stores a JSON integer.
func Int(into *int64) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if bytes.Equal(raw, []byte("null")) {
			return malformed("not an integer")
		}
		return json.Unmarshal(raw, into)
	}
}

// stringMap returns a field handler that stores an object whose values are all strings.
func stringMap(into *map[string]string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		m := map[string]string{}
		err := Object(raw, nil, func(key string, value json.RawMessage) error {
			var s string
			if err := String(&s)(value); err != nil {
				return err
			}
			m[key] = s
			return nil
		})
		if err != nil {
			return err
		}
		*into = m
		return nil
	}
}

// Array returns a field handler that calls each for every element of a JSON array, at most limit of
// them.
func Array(limit int, each func(json.RawMessage) error) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if len(raw) == 0 || raw[0] != '[' {
			return malformed("not an array")
		}
		var elements []json.RawMessage
		if err := json.Unmarshal(raw, &elements); err != nil {
			return err
		}
		if len(elements) > limit {
			return malformed("%d elements, at most %d allowed", len(elements), limit)
		}
		for i, e := range elements {
			if err := each(e); err != nil {
				return inField(fmt.Sprintf("[%d]", i), err)
			}
		}
		return nil
	}
}
