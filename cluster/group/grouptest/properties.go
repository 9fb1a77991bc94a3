package grouptest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// NoProperties reads nothing from properties, and leaves them as they are.
type NoProperties struct{}

// Expiration: none.
func (NoProperties) Expiration(fsm.Payload) string { return "" }

// Headers: none.
func (NoProperties) Headers(fsm.Payload, []*logpb.Death) *fsm.Table { return nil }

// Copies: none.
func (NoProperties) Copies(fsm.Payload) []string { return nil }

// Property: none.
func (NoProperties) Property(fsm.Payload, string) []byte { return nil }

// Describe shows none.
func (NoProperties) Describe(*fsm.Message) *fsm.Table { return &fsm.Table{} }

// Body is the payload's.
func (NoProperties) Body(p fsm.Payload) []byte { return p.Body() }

// Check finds nothing wrong.
func (NoProperties) Check(fsm.Payload) error { return nil }

// Encode encodes none.
func (NoProperties) Encode(*fsm.Table) ([]byte, error) { return nil, nil }

// Rewritten changes nothing.
func (NoProperties) Rewritten(p fsm.Payload, _ fsm.Rewrite) []byte { return p.List() }

// Publish makes a publish without properties.
func (NoProperties) Publish(_, exchange, key string, _ *fsm.Table, body []byte) (*fsm.Publish, error) {
	p := &fsm.Publish{Exchange: exchange, RoutingKey: key, TTL: -1, Priority: -1, Headers: func() *fsm.Table { return nil }, Property: func(string) []byte { return nil }}
	p.Payload = append(fsm.AppendPayloadHead(nil, exchange, key, nil), body...)
	return p, nil
}

// Answer has none.
func (NoProperties) Answer([]byte) []byte { return nil }

// Reason: none.
func (NoProperties) Reason(*fsm.Refusal) (uint16, string) { return 0, "" }

// Delay: none.
func (NoProperties) Delay(fsm.Payload) fsm.Millis { return 0 }

// Deaths: none.
func (NoProperties) Deaths(fsm.Payload) []*logpb.Death { return nil }

// Time: none.
func (NoProperties) Time(fsm.Payload, string) (fsm.Time, bool) { return 0, false }
