package session

import (
	"bytes"
	"math"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// A token says what it was made of, and nothing else passes for one: no field can
// be changed, and no text that only decodes to the same.
func TestLockToken(t *testing.T) {
	secret, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	session := fsm.SessionID{Node: 3, Boot: 70_000, Num: 5}
	of := lockToken{queue: 1 << 40, of: fsm.ConsumerID{Session: session, Number: 6}, delivery: 7}
	text := of.text(secret)
	if got, ok := parseLockToken(text, secret); !ok || got != of {
		t.Fatalf("%s is %+v, %v", text, got, ok)
	}
	for name, change := range map[string]func(*lockToken){
		"queue":    func(x *lockToken) { x.queue++ },
		"node":     func(x *lockToken) { x.of.Session.Node++ },
		"boot":     func(x *lockToken) { x.of.Session.Boot++ },
		"session":  func(x *lockToken) { x.of.Session.Num++ },
		"consumer": func(x *lockToken) { x.of.Number++ },
		"delivery": func(x *lockToken) { x.delivery++ },
	} {
		changed := of
		change(&changed)
		raw, err := lockEncoding.DecodeString(changed.text(secret))
		if err != nil || changed.text(secret) == text {
			t.Fatalf("%s: %v", name, err)
		}
		genuine, _ := lockEncoding.DecodeString(text)
		forged := append(bytes.Clone(raw[:len(raw)-lockMACSize]), genuine[len(genuine)-lockMACSize:]...)
		if got, ok := parseLockToken(lockEncoding.EncodeToString(forged), secret); ok {
			t.Errorf("another %s passes: %+v", name, got)
		}
	}
	for i := range text {
		for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567a=") {
			if c == text[i] {
				continue
			}
			forged := []byte(text)
			forged[i] = c
			if _, ok := parseLockToken(string(forged), secret); ok {
				t.Errorf("%s passes for %s", forged, text)
			}
		}
	}
	for _, forged := range []string{"", text[1:], text[:len(text)-1], text + "A", text + "=", text + text, "\n" + text} {
		if _, ok := parseLockToken(forged, secret); ok {
			t.Errorf("%q passes", forged)
		}
	}
	if _, ok := parseLockToken(text, other); ok {
		t.Error("it passes in another cluster")
	}
	if _, ok := parseLockToken(of.text(nil), nil); ok || of.text(nil) != "" {
		t.Error("there are tokens without a secret")
	}
	const all = math.MaxUint64
	longest := lockToken{queue: all, of: fsm.ConsumerID{Session: fsm.SessionID{Node: math.MaxUint32, Boot: all, Num: all}, Number: all}, delivery: all}
	if got, ok := parseLockToken(longest.text(secret), secret); !ok || got != longest {
		t.Errorf("the longest is %+v, %v", got, ok)
	}
}
