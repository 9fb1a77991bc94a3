package grouptest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// NoProperties reads nothing from properties, and leaves them as they are.
type NoProperties struct{}

// Expiration: none.
func (NoProperties) Expiration([]byte) string { return "" }

// Headers: none.
func (NoProperties) Headers([]byte, []*logpb.Death) *fsm.Table { return nil }

// Copies: none.
func (NoProperties) Copies([]byte) []string { return nil }

// Property: none.
func (NoProperties) Property([]byte, string) []byte { return nil }

// Describe shows none.
func (NoProperties) Describe([]byte, *fsm.Message) *fsm.Table { return &fsm.Table{} }

// Body is the payload's.
func (NoProperties) Body(p fsm.Payload) []byte { return p.Body() }

// Check finds nothing wrong.
func (NoProperties) Check(fsm.Payload) error { return nil }

// Encode encodes none.
func (NoProperties) Encode(*fsm.Table) ([]byte, error) { return nil, nil }

// Remarked changes nothing.
func (NoProperties) Remarked(properties []byte, _ fsm.Remark) []byte { return properties }

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
func (NoProperties) Delay([]byte) fsm.Millis { return 0 }

// Delayed changes nothing.
func (NoProperties) Delayed(properties []byte) []byte { return properties }

// Deaths: none.
func (NoProperties) Deaths([]byte) []*logpb.Death { return nil }

// Redirected changes nothing.
func (NoProperties) Redirected(properties []byte) []byte { return properties }
