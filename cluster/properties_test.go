package cluster

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// noProperties reads nothing from properties.
type noProperties struct{}

func (noProperties) Expiration([]byte) string                  { return "" }
func (noProperties) Headers([]byte, []*logpb.Death) *fsm.Table { return nil }
func (noProperties) Copies([]byte) []string                    { return nil }
func (noProperties) Property([]byte, string) []byte            { return nil }
func (noProperties) Describe([]byte, *fsm.Message) *fsm.Table  { return &fsm.Table{} }
func (noProperties) Body(p fsm.Payload) []byte                 { return p.Body() }
func (noProperties) Check(fsm.Payload) error                   { return nil }
func (noProperties) Encode(*fsm.Table) ([]byte, error)         { return nil, nil }
func (noProperties) Remarked(p []byte, _ fsm.Remark) []byte    { return p }
func (noProperties) Publish(_, _, _ string, _ *fsm.Table, _ []byte) (*fsm.Publish, error) {
	return nil, nil
}
func (noProperties) Answer([]byte) []byte                 { return nil }
func (noProperties) Reason(*fsm.Refusal) (uint16, string) { return 0, "" }
func (noProperties) Delay([]byte) fsm.Millis              { return 0 }
func (noProperties) Delayed(properties []byte) []byte     { return properties }
func (noProperties) Deaths([]byte) []*logpb.Death         { return nil }
func (noProperties) Redirected(properties []byte) []byte  { return properties }

// upperCase shows bodies as no queue keeps them.
type upperCase struct{ noProperties }

func (upperCase) Body(p fsm.Payload) []byte { return bytes.ToUpper(p.Body()) }

// People see the body that a delivery has, and not what a queue keeps.
func TestShownBody(t *testing.T) {
	p := append(fsm.AppendPayloadHead(nil, "", "q", nil), "body"...)
	x := messages{properties: upperCase{}}.shown(queues.Peeked{Message: fsm.Message{Payload: p}})
	if string(x.Body) != "BODY" {
		t.Errorf("%q is shown", x.Body)
	}
}
