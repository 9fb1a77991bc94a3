package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// A snapshot stream carries, as gRPC messages: the request as one frame; back
// comes one frame with what of the snapshot need not be sent, or a refusal; then
// one frame with the length of the rest, and its bytes without frames until all
// of them are sent; back comes one frame with the answer. The sender names
// itself in the stream's metadata and is believed only while a link from that
// node and incarnation is open.

const (
	// snapshotChunk is the size of one message of a snapshot.
	snapshotChunk = 256 << 10
	// maxSnapshot bounds what a snapshot is said to be.
	maxSnapshot = 1 << 40

	nodeKey        = "quorate-node"
	incarnationKey = "quorate-incarnation-bin"
)

// Snapshots is what a group does about snapshots on their way.
type Snapshots interface {
	// Offer is asked before a snapshot up to index is installed here. The list
	// says what need not be sent, to the reader that the sender was given (see
	// Abridged); done is called when the snapshot is installed, or given up. If
	// the group has a newer snapshot it returns the index of that and no done.
	Offer(index uint64) (list []byte, done func(), newer uint64)
	// Refused is called when a member has a snapshot up to index, newer than the
	// one that was sent to it. It must not block.
	Refused(index uint64)
}

// Abridged is a reader of a snapshot that can leave out what the receiver has.
// Without is called before anything is read, and returns how much there is to
// read then.
type Abridged interface {
	Without(list []byte) (size int64, err error)
}

// Exchange sets what is asked about the group's snapshots.
func (t *transport) Exchange(s Snapshots) { t.snapshots.Store(&s) }

// snapshotChunks recycles the buffers that snapshots are read into.
var snapshotChunks = mem.NewTieredBufferPool(snapshotChunk)

// sendSnapshot streams a snapshot to p. It ends with the link, with the
// transport, or with the answer.
func (t *transport) sendSnapshot(p *peer, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	free, err := t.m.snapshots.sending.take(args.Size, t.shutdown)
	if err != nil {
		return err
	}
	defer free()
	l, err := p.waitLink(t.shutdown)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(l.ctx,
		nodeKey, t.m.cfg.Node, incarnationKey, string(t.m.cfg.Incarnation[:])))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	stream, err := l.client.Snapshot(ctx, grpc.MaxCallRecvMsgSize(maxOffer))
	if err != nil {
		return fmt.Errorf("opening snapshot stream: %w", err)
	}
	f, err := t.writeSnapshot(stream, p, args, data)
	if err != nil {
		return err
	}
	return l.answered(f, resp, args.Term)
}

// writeSnapshot sends the request and what the other side lacks of the
// snapshot, and returns the answer.
func (t *transport) writeSnapshot(stream grpc.ClientStream, p *peer, args *raft.InstallSnapshotRequest, data io.Reader) (frame, error) {
	if err := sendFrame(stream, header{kind: kindSnapshot, arg: uint32(t.group)}, snapshotBody{args}); err != nil && !errors.Is(err, io.EOF) {
		return frame{}, err
	}
	offer, err := t.answer(stream, p, kindOffer)
	if err != nil {
		return frame{}, err
	}
	size := args.Size
	if a, ok := data.(Abridged); ok && len(offer.body) > 0 {
		if size, err = a.Without(offer.body); err != nil {
			return frame{}, fmt.Errorf("leaving out of a snapshot what node %s has: %w", p.name, err)
		}
	}
	t.m.snapshots.sent.Add(1)
	t.m.snapshots.sentBytes.Add(uint64(size))
	t.m.snapshots.leftOut.Add(uint64(args.Size - size))
	err = sendFrame(stream, header{kind: kindSize, number: uint64(size)}, noBody{})
	if err == nil {
		err = copySnapshot(stream, size, data)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return frame{}, err
	}
	// After io.EOF the receiver has given up early; its reason comes here.
	return t.answer(stream, p, kindReply)
}

// answer reads a frame of a kind from the receiver of a snapshot, or its refusal.
func (t *transport) answer(stream grpc.ClientStream, p *peer, k Kind) (frame, error) {
	var in inMessage
	if err := stream.RecvMsg(&in); err != nil {
		return frame{}, fmt.Errorf("sending snapshot: %w", noEOF(err))
	}
	f, rest, err := nextFrame(in.data)
	switch {
	case err != nil:
		return frame{}, err
	case f.kind == k && len(rest) == 0:
		return f, nil
	case f.kind != kindFailure || len(f.body) > maxText:
		return frame{}, fmt.Errorf("%w: kind %d of %d bytes in answer to a snapshot", errProtocol, f.kind, len(in.data))
	}
	refusal := &RemoteError{Node: p.name, Text: string(f.body), code: f.arg}
	if s := t.snapshots.Load(); s != nil && errors.Is(refusal, ErrSuperseded) {
		(*s).Refused(f.number)
	}
	return f, refusal
}

// copySnapshot sends so many bytes, as fast as the share of an install allows.
func copySnapshot(stream grpc.ClientStream, size int64, data io.Reader) error {
	var throttle throttle
	for left := size; left > 0; {
		began := time.Now()
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
		if err := throttle.worked(stream.Context(), time.Since(began)); err != nil {
			return err
		}
	}
	return stream.CloseSend()
}

// sendFrame sends a message that consists of one frame.
func sendFrame(stream interface{ SendMsg(any) error }, h header, b body) error {
	message := new(batch)
	h.put(message.reserve(headerSize), b.size())
	b.write(message)
	return stream.SendMsg(message)
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
	in := s.snapshotSender(stream.Context())
	if in == nil {
		s.m.Complain(host(stream.Context()), "refused a snapshot", ErrUnknownNode)
		return status.Error(codes.FailedPrecondition, "peer: no link from this node")
	}
	if !in.p.use.snapshots.take(snapshotsPerPeer) {
		return status.Error(codes.ResourceExhausted, errCrowded.Error())
	}
	defer in.p.use.snapshots.put()
	answer, err := in.receiveSnapshot(stream)
	h, b := header{kind: kindReply}, body(answer)
	if err != nil {
		var newer *supersededError
		if errors.As(err, &newer) {
			h.number = newer.index
		} else {
			s.m.Complain(in.p.name, "snapshot not installed", err)
		}
		h.kind, h.arg = kindFailure, failureCode(err)
		b = textBody(err.Error())
	}
	return sendFrame(stream, h, b)
}

// supersededError refuses a snapshot that is older than the one up to index.
type supersededError struct{ index uint64 }

func (e *supersededError) Error() string {
	return fmt.Sprintf("%v, up to entry %d", ErrSuperseded, e.index)
}
func (e *supersededError) Unwrap() error { return ErrSuperseded }

// snapshotSender returns the stream of the node that opened a snapshot stream.
func (s *service) snapshotSender(ctx context.Context) *inbound {
	md, _ := metadata.FromIncomingContext(ctx)
	node, incarnation := md.Get(nodeKey), md.Get(incarnationKey)
	if len(node) != 1 || len(incarnation) != 1 || proofOf(ctx).is(node[0]) != nil {
		return nil
	}
	p := s.m.peer(node[0])
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
	r := readSnapshot(stream, in.m.cfg.SnapshotStall, in.m.done.Go)
	f, err := r.frame(kindSnapshot)
	if err != nil {
		return nil, err
	}
	req, err := decodeSnapshot(f.body, in.p.nameBytes)
	if err == nil {
		err = vetCommand(req)
	}
	if err != nil {
		in.cancel(err) // that is no node of this program
		return nil, err
	}
	t := in.m.groups.find(fsm.GroupID(f.arg))
	if t == nil {
		return nil, ErrUnknownGroup
	}
	if err := validate(t.inbox.validator, req); err != nil {
		return nil, err
	}
	free, err := in.m.snapshots.receiving.take(req.Size, stream.Context().Done())
	if err != nil {
		return nil, err
	}
	defer free()
	done, err := t.exchange(stream, req)
	if err != nil {
		return nil, err
	}
	defer done()
	f, err = r.frame(kindSize)
	if err != nil {
		return nil, err
	}
	if f.number > uint64(req.Size) {
		return nil, fmt.Errorf("%w: a snapshot that has grown from %d to %d bytes", errProtocol, req.Size, f.number)
	}
	req.Size = int64(f.number)
	in.m.snapshots.received.Add(1)
	return t.install(in, req, r)
}

// exchange tells the sender of a snapshot what need not be sent.
func (t *transport) exchange(stream grpc.ServerStream, req *raft.InstallSnapshotRequest) (done func(), err error) {
	list, done := []byte(nil), func() {}
	if s := t.snapshots.Load(); s != nil {
		var newer uint64
		if list, done, newer = (*s).Offer(req.LastLogIndex); newer > 0 {
			return nil, &supersededError{newer}
		}
	}
	if err := sendFrame(stream, header{kind: kindOffer}, rawBody(list)); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// install hands a snapshot to raft and waits for its answer.
func (t *transport) install(in *inbound, req *raft.InstallSnapshotRequest, data io.Reader) (*numbers, error) {
	answers := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: req, Reader: io.LimitReader(data, req.Size), RespChan: answers}
	select {
	case t.inbox.consumer <- rpc:
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

// snapshotReader reads the messages of a snapshot off its stream. Each has to
// come soon: the group takes nothing else meanwhile, and no other snapshot may
// come.
type snapshotReader struct {
	come chan []byte // closed at the end
	err  error       // why; may be read then
	wait time.Duration
	rest []byte
}

func readSnapshot(stream grpc.ServerStream, wait time.Duration, spawn func(func())) *snapshotReader {
	r := &snapshotReader{come: make(chan []byte), wait: wait}
	spawn(func() {
		defer close(r.come)
		for {
			var in inMessage
			if r.err = stream.RecvMsg(&in); r.err != nil {
				return
			}
			select {
			case r.come <- in.data:
			case <-stream.Context().Done():
				r.err = stream.Context().Err()
				return
			}
		}
	})
	return r
}

// message returns the next message.
func (r *snapshotReader) message() ([]byte, error) {
	timer := time.NewTimer(r.wait)
	defer timer.Stop()
	select {
	case msg, more := <-r.come:
		if !more {
			return nil, r.err
		}
		return msg, nil
	case <-timer.C:
		return nil, errLate
	}
}

// frame returns the next message, which consists of one frame of a kind.
func (r *snapshotReader) frame(k Kind) (frame, error) {
	msg, err := r.message()
	if err != nil {
		return frame{}, err
	}
	f, rest, err := nextFrame(msg)
	if err == nil && (f.kind != k || len(rest) > 0) {
		err = fmt.Errorf("%w: kind %d in a snapshot stream", errProtocol, f.kind)
	}
	return f, err
}

// Read implements io.Reader.
func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		msg, err := r.message()
		if err != nil {
			return 0, err
		}
		r.rest = msg
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Snapshots share disk, links and processors with clients' messages, which come
// first: a snapshot can take longer.
const (
	// smallSnapshot is what may go beside a large one.
	smallSnapshot = 1 << 20
	smallAtATime  = 8
	// snapshotDutyCycle is which part of the time an install works: the rest
	// belongs to others. It is the sender that pauses, by the time that its own
	// work took: what is slow because others are busy pauses longer.
	snapshotDutyCycle = 0.4
	// leastPause is what is worth a pause: a shorter one would be longer.
	leastPause = 5 * time.Millisecond
)

// snapshotSlots bounds the snapshots that a node sends, or receives, at a time:
// one that is large, and a few small ones.
type snapshotSlots struct{ large, small chan struct{} }

func (s *snapshotSlots) init() {
	s.large, s.small = make(chan struct{}, 1), make(chan struct{}, smallAtATime)
}

// take waits until a snapshot of this size may go, or for stop.
func (s *snapshotSlots) take(size int64, stop <-chan struct{}) (free func(), err error) {
	slots := s.large
	if size <= smallSnapshot {
		slots = s.small
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-stop:
		return nil, errAbandoned
	}
}

// throttle keeps an install to its duty cycle.
type throttle struct{ owed time.Duration }

// worked pauses after a piece that took so long.
func (p *throttle) worked(ctx context.Context, took time.Duration) error {
	p.owed += time.Duration(float64(took) * (1 - snapshotDutyCycle) / snapshotDutyCycle)
	if p.owed < leastPause {
		return nil
	}
	began := time.Now()
	pause := time.NewTimer(p.owed)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.owed -= time.Since(began) // a late timer is credit for the next piece
	return nil
}

// snapshotTraffic is what goes on about snapshots between this node and others.
type snapshotTraffic struct {
	sending, receiving                 snapshotSlots
	sent, sentBytes, leftOut, received atomic.Uint64 // as in SnapshotCounts
}

func (s *snapshotTraffic) init() {
	s.sending.init()
	s.receiving.init()
}

// SnapshotCounts counts snapshots since the mesh was made.
type SnapshotCounts struct {
	Sent      uint64 // to other nodes, or begun
	SentBytes uint64
	LeftOut   uint64 // bytes that the receivers had
	Received  uint64 // from other nodes, or begun
}

// SnapshotCounts returns the counts of snapshots.
func (m *Mesh) SnapshotCounts() SnapshotCounts {
	s := &m.snapshots
	return SnapshotCounts{s.sent.Load(), s.sentBytes.Load(), s.leftOut.Load(), s.received.Load()}
}
