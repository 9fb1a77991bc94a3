package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// A snapshot stream carries, as gRPC messages: the request as one frame, then
// the snapshot's bytes without frames until all of them are sent; back comes
// one frame with the answer. The sender names itself in the stream's metadata
// and is believed only while a link from that node and incarnation is open.

const (
	// snapshotChunk is the size of one message of a snapshot.
	snapshotChunk = 256 << 10

	nodeKey        = "quorate-node"
	incarnationKey = "quorate-incarnation-bin"
)

// snapshotChunks recycles the buffers that snapshots are read into.
var snapshotChunks = mem.NewTieredBufferPool(snapshotChunk)

// sendSnapshot streams a snapshot to p. It ends with the link, with the
// transport, or with the answer.
func (t *transport) sendSnapshot(p *peer, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	select {
	case p.snapshots <- struct{}{}:
		defer func() { <-p.snapshots }()
	case <-t.shutdown:
		return errAbandoned
	}
	l, err := p.waitLink(t.shutdown)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(l.ctx,
		nodeKey, t.m.cfg.Node, incarnationKey, string(t.m.cfg.Incarnation[:])))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	stream, err := l.client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("opening snapshot stream: %w", err)
	}
	if err := writeSnapshot(stream, t.group, args, data); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// After io.EOF the receiver has given up early; its reason comes here.
	var in inMessage
	if err := stream.RecvMsg(&in); err != nil {
		return fmt.Errorf("sending snapshot: %w", err)
	}
	f, _, err := nextFrame(in.data)
	switch {
	case err != nil:
		return err
	case f.kind == kindFailure:
		return &RemoteError{Node: p.name, Text: string(f.body), code: f.arg}
	}
	return decodeAnswer(f.body, p.nameBytes, resp)
}

// writeSnapshot sends the request and args.Size bytes of data.
func writeSnapshot(stream grpc.ClientStream, group fsm.GroupID, args *raft.InstallSnapshotRequest, data io.Reader) error {
	b := new(batch)
	body := snapshotBody{args}
	header{kind: kindSnapshot, arg: uint32(group)}.put(b.reserve(headerSize), body.size())
	body.write(b)
	if err := stream.SendMsg(b); err != nil {
		return err
	}
	for left := args.Size; left > 0; {
		buf := snapshotChunks.Get(int(min(left, snapshotChunk)))
		n, err := io.ReadFull(data, *buf)
		if err != nil {
			snapshotChunks.Put(buf)
			return fmt.Errorf("reading snapshot: %w", noEOF(err))
		}
		left -= int64(n)
		chunk := &batch{parts: mem.BufferSlice{mem.NewBuffer(buf, snapshotChunks)}, size: n}
		if err := stream.SendMsg(chunk); err != nil {
			return err
		}
	}
	return stream.CloseSend()
}

// noEOF keeps the end of a file from being taken for the end of a stream.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Snapshot receives a snapshot.
func (s *service) Snapshot(stream grpc.BidiStreamingServer[peerpb.Frame, peerpb.Frame]) error {
	in := s.m.snapshotSender(stream.Context())
	if in == nil {
		return status.Error(codes.FailedPrecondition, "peer: no link from this node")
	}
	answer, err := in.receiveSnapshot(stream)
	h, b := header{kind: kindReply}, body(answer)
	if err != nil {
		s.m.log.Warn("snapshot not installed", slog.String("node", in.p.name), slog.Any("error", err))
		h, b = header{kind: kindFailure, arg: failureCode(err)}, textBody(err.Error())
	}
	reply := new(batch)
	h.put(reply.reserve(headerSize), b.size())
	b.write(reply)
	return stream.SendMsg(reply)
}

// snapshotSender returns the stream of the node that opened a snapshot stream.
func (m *Mesh) snapshotSender(ctx context.Context) *inbound {
	md, _ := metadata.FromIncomingContext(ctx)
	node, incarnation := md.Get(nodeKey), md.Get(incarnationKey)
	if len(node) != 1 || len(incarnation) != 1 {
		return nil
	}
	p := m.peer(node[0])
	if p == nil {
		return nil
	}
	in := p.streamFrom()
	if in == nil || string(in.incarnation[:]) != incarnation[0] {
		return nil
	}
	return in
}

// receiveSnapshot gives the snapshot to raft, which reads the stream while it
// handles the request.
func (in *inbound) receiveSnapshot(stream grpc.ServerStream) (*numbers, error) {
	select {
	case in.snapshots <- struct{}{}:
		defer func() { <-in.snapshots }()
	default:
		return nil, ErrBusy
	}
	var first inMessage
	if err := stream.RecvMsg(&first); err != nil {
		return nil, err
	}
	f, rest, err := nextFrame(first.data)
	if err != nil {
		return nil, err
	}
	if f.kind != kindSnapshot || len(rest) > 0 {
		return nil, fmt.Errorf("%w: no snapshot request", errProtocol)
	}
	req, err := decodeSnapshot(f.body, in.p.nameBytes)
	if err != nil {
		return nil, err
	}
	in.m.mu.RLock()
	t := in.m.groups[fsm.GroupID(f.arg)]
	in.m.mu.RUnlock()
	if t == nil {
		return nil, ErrUnknownGroup
	}
	return t.install(in, req, &snapshotReader{stream: stream})
}

// install hands a snapshot to raft and waits for its answer.
func (t *transport) install(in *inbound, req *raft.InstallSnapshotRequest, data io.Reader) (*numbers, error) {
	answers := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: req, Reader: io.LimitReader(data, req.Size), RespChan: answers}
	select {
	case t.consumer <- rpc:
	case <-t.shutdown:
		return nil, ErrUnknownGroup
	case <-in.ctx.Done():
		return nil, ErrBroken
	}
	select {
	case a := <-answers:
		if a.Error != nil {
			return nil, a.Error
		}
		n, _ := answerBody(a.Response)
		if n == nil {
			return nil, fmt.Errorf("peer: no answer of type %T", a.Response)
		}
		return n, nil
	case <-t.shutdown:
		return nil, ErrUnknownGroup
	}
}

// snapshotReader reads the bytes of a snapshot off its stream.
type snapshotReader struct {
	stream grpc.ServerStream
	rest   []byte
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var in inMessage
		if err := r.stream.RecvMsg(&in); err != nil {
			return 0, err
		}
		r.rest = in.data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
