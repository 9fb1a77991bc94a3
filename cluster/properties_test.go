package cluster

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
)

// upperCase shows bodies as no queue keeps them.
type upperCase struct{ grouptest.NoProperties }

func (upperCase) Body(p fsm.Payload) []byte { return bytes.ToUpper(p.Body()) }

// People see the body that a delivery has, and not what a queue keeps.
func TestShownBody(t *testing.T) {
	p := append(fsm.AppendPayloadHead(nil, "", "q", nil), "body"...)
	x := messages{properties: upperCase{}}.shown(queues.Peeked{Message: fsm.Message{Payload: p}})
	if string(x.Body) != "BODY" {
		t.Errorf("%q is shown", x.Body)
	}
}
