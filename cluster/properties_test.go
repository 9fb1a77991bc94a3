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

func (noProperties) Expiration(fsm.Payload) string                  { return "" }
func (noProperties) Headers(fsm.Payload, []*logpb.Death) *fsm.Table { return nil }
func (noProperties) Copies(fsm.Payload) []string                    { return nil }
func (noProperties) Property(fsm.Payload, string) []byte            { return nil }
func (noProperties) Describe(*fsm.Message) *fsm.Table               { return &fsm.Table{} }
func (noProperties) Body(p fsm.Payload) []byte                      { return p.Body() }
func (noProperties) Check(fsm.Payload) error                        { return nil }
func (noProperties) Encode(*fsm.Table) ([]byte, error)              { return nil, nil }
func (noProperties) Rewritten(p fsm.Payload, _ fsm.Rewrite) []byte  { return p.List() }
func (noProperties) Publish(_, _, _ string, _ *fsm.Table, _ []byte) (*fsm.Publish, error) {
	return nil, nil
}
func (noProperties) Answer([]byte) []byte                 { return nil }
func (noProperties) Reason(*fsm.Refusal) (uint16, string) { return 0, "" }
func (noProperties) Delay(fsm.Payload) fsm.Millis         { return 0 }
func (noProperties) Deaths(fsm.Payload) []*logpb.Death    { return nil }

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
