package cluster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// transferWait bounds one transfer of a leadership at another node.
const transferWait = 10 * time.Second

// transfer has the leader of a group hand its leadership to another node.
func (n *Node) transfer(ctx context.Context, id fsm.GroupID, from, to string) error {
	if from == n.config.Name {
		return n.transferHere(id, to)
	}
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	req, err := proto.Marshal(&peerpb.TransferRequest{Group: uint32(id), To: to})
	if err != nil {
		return err
	}
	answer, err := n.mesh.Call(ctx, from, broker.KindTransfer, req)
	if err != nil {
		return fmt.Errorf("ask %s to hand over: %w", from, err)
	}
	var r peerpb.TransferReply
	if err := proto.Unmarshal(answer, &r); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("%s does not hand over: %s", from, r.Error)
	}
	return nil
}

func (n *Node) transferHere(id fsm.GroupID, to string) error {
	if id == stats.CatalogGroup {
		return n.catalog.Transfer(to)
	}
	g := n.host.Group(id)
	if g == nil {
		return group.ErrNotLeading
	}
	return g.Transfer(to)
}

func (n *Node) onTransfer(_ context.Context, _ string, req []byte) ([]byte, error) {
	var m peerpb.TransferRequest
	if err := proto.Unmarshal(req, &m); err != nil {
		return nil, err
	}
	r := &peerpb.TransferReply{}
	if err := n.transferHere(fsm.GroupID(m.Group), m.To); err != nil {
		r.Error = err.Error()
	}
	return proto.Marshal(r)
}

// listen registers for what other nodes ask.
func (n *Node) listen() {
	n.mesh.Handle(broker.KindResourceAlarms, n.alarm.Receive)
	n.mesh.HandleCall(broker.KindTransfer, n.onTransfer)
	n.handleClients()
}
