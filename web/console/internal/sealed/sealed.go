// Package sealed encrypts values into texts, such as cookies, that only servers with the same
// secret can read or change. So every replica can read what another gave to a browser.
package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// MaxText bounds a sealed text, in bytes.
const MaxText = 20 << 10

// Box seals values for one purpose, by AES-256-GCM with random nonces. It is safe for concurrent
// use.
type Box struct {
	aead    cipher.AEAD
	purpose []byte
}

// New makes a Box. What is sealed for one purpose cannot be opened for another.
func New(secret []byte, purpose string) *Box {
	key, err := hkdf.Key(sha256.New, secret, nil, "tidewaiter console: "+purpose, 32)
	if err != nil {
		panic(err) // 32 bytes are not too many
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has blocks of the right size
	}
	return &Box{aead, []byte(purpose)}
}

// Seal encodes a value as JSON and encrypts it into characters that a cookie may have.
func (b *Box) Seal(v any) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b.aead.Seal(nil, nil, plain, b.purpose)), nil
}

// Open decrypts what Seal wrote. It fails for a text from another secret or purpose.
func (b *Box) Open(text string, v any) error {
	if len(text) > MaxText || strings.ContainsAny(text, "\r\n") {
		// the decoder would ignore line breaks
		return errors.New("it is too long, or has several lines")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return err
	}
	plain, err := b.aead.Open(nil, nil, raw, b.purpose)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}
