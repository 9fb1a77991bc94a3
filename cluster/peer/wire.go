package peer

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/raft"
)

// Raft requests and their answers have fixed layouts. Names are not sent: the
// ids and addresses in raft's headers are those of the sending node, which the
// receiver knows from the link. AppendedAt of entries is not sent; nothing may
// depend on it.

// appendHead: version 1, flags 1, term 8, previous index 8, previous term 8,
// commit index 8, number of entries 4. Each entry: entryHead, data, extensions.
const (
	appendHead = 1 + 1 + 4*8 + 4
	// entryHead: index 8, term 8, type 1, length of data 4, of extensions 4.
	entryHead = 8 + 8 + 1 + 4 + 4

	// flagIdle: the answer may wait for company as the request did.
	flagIdle = 1 << 0
)

// appendBody writes an AppendEntries request.
type appendBody struct {
	req  *raft.AppendEntriesRequest
	idle bool
}

func (a appendBody) size() int { return appendSize(a.req) }

func appendSize(r *raft.AppendEntriesRequest) int {
	n := appendHead + entryHead*len(r.Entries)
	for _, e := range r.Entries {
		n += len(e.Data) + len(e.Extensions)
	}
	return n
}

func (a appendBody) write(b *batch) {
	r := a.req
	p := b.reserve(appendHead)
	p[0], p[1] = byte(r.ProtocolVersion), 0
	if a.idle {
		p[1] |= flagIdle
	}
	putUint64s(p[2:], r.Term, r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex)
	binary.BigEndian.PutUint32(p[34:], uint32(len(r.Entries)))
	for _, e := range r.Entries {
		p := b.reserve(entryHead)
		putUint64s(p, e.Index, e.Term)
		p[16] = byte(e.Type)
		binary.BigEndian.PutUint32(p[17:], uint32(len(e.Data)))
		binary.BigEndian.PutUint32(p[21:], uint32(len(e.Extensions)))
		b.add(e.Data)
		b.add(e.Extensions)
	}
}

func putUint64s(p []byte, vs ...uint64) {
	for i, v := range vs {
		binary.BigEndian.PutUint64(p[8*i:], v)
	}
}

// reader takes numbers off a body. After a short read everything is zero.
type reader struct {
	p     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.p) {
		r.short, r.p = true, nil
		return nil
	}
	p := r.p[:n:n]
	r.p = r.p[n:]
	return p
}

func (r *reader) uint8() uint8 {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if p := r.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if p := r.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// bytes returns the next n bytes; nil if n is 0.
func (r *reader) bytes(n uint32) []byte {
	if n == 0 {
		return nil
	}
	if uint64(n) > uint64(len(r.p)) {
		r.short, r.p = true, nil
		return nil
	}
	return r.take(int(n))
}

// done returns an error unless exactly everything was read.
func (r *reader) done() error {
	if r.short || len(r.p) > 0 {
		return fmt.Errorf("%w: body of wrong length", errProtocol)
	}
	return nil
}

// decodeAppend parses a request from the node called name. Entries point into
// p. idle: the answer may wait.
func decodeAppend(p, name []byte) (req *raft.AppendEntriesRequest, idle bool, err error) {
	r := reader{p: p}
	req = &raft.AppendEntriesRequest{RPCHeader: rpcHeader(&r, name)}
	idle = r.uint8()&flagIdle != 0
	req.Term, req.PrevLogEntry, req.PrevLogTerm = r.uint64(), r.uint64(), r.uint64()
	req.LeaderCommitIndex = r.uint64()
	n := r.uint32()
	if uint64(n)*entryHead > uint64(len(r.p)) {
		return nil, false, fmt.Errorf("%w: %d entries in %d bytes", errProtocol, n, len(r.p))
	}
	if n > 0 {
		logs := make([]raft.Log, n)
		req.Entries = make([]*raft.Log, n)
		for i := range logs {
			decodeEntry(&r, &logs[i])
			req.Entries[i] = &logs[i]
		}
	}
	return req, idle, r.done()
}

func decodeEntry(r *reader, l *raft.Log) {
	l.Index, l.Term = r.uint64(), r.uint64()
	l.Type = raft.LogType(r.uint8())
	data, ext := r.uint32(), r.uint32()
	l.Data, l.Extensions = r.bytes(data), r.bytes(ext)
}

func rpcHeader(r *reader, name []byte) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersion(r.uint8()), ID: name, Addr: name}
}

// isHeartbeat tells whether raft sent r only to show that the leader lives.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// numbers is a body of one flag byte after the version, then 64-bit numbers.
type numbers struct {
	version, flags byte
	n              int
	v              [3]uint64
}

func (n *numbers) size() int { return 2 + 8*n.n }

func (n *numbers) write(b *batch) {
	p := b.reserve(n.size())
	p[0], p[1] = n.version, n.flags
	putUint64s(p[2:], n.v[:n.n]...)
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

func voteBody(r *raft.RequestVoteRequest) *numbers {
	return &numbers{byte(r.ProtocolVersion), flag(r.LeadershipTransfer, 1), 3,
		[3]uint64{r.Term, r.LastLogIndex, r.LastLogTerm}}
}

func preVoteBody(r *raft.RequestPreVoteRequest) *numbers {
	return &numbers{byte(r.ProtocolVersion), 0, 3, [3]uint64{r.Term, r.LastLogIndex, r.LastLogTerm}}
}

func timeoutNowBody(r *raft.TimeoutNowRequest) *numbers {
	return &numbers{version: byte(r.ProtocolVersion)}
}

// decodeCommand parses a raft request other than a snapshot.
func decodeCommand(k Kind, p, name []byte) (cmd any, idle bool, err error) {
	if k == kindAppend {
		return decodeAppend(p, name)
	}
	r := reader{p: p}
	h := rpcHeader(&r, name)
	flags := r.uint8()
	switch k {
	case kindVote:
		cmd = &raft.RequestVoteRequest{
			RPCHeader: h, Term: r.uint64(),
			LastLogIndex: r.uint64(), LastLogTerm: r.uint64(), LeadershipTransfer: flags&1 != 0,
		}
	case kindPreVote:
		cmd = &raft.RequestPreVoteRequest{
			RPCHeader: h, Term: r.uint64(), LastLogIndex: r.uint64(), LastLogTerm: r.uint64(),
		}
	case kindTimeoutNow:
		cmd = &raft.TimeoutNowRequest{RPCHeader: h}
	default:
		return nil, false, fmt.Errorf("%w: kind %d", errProtocol, k)
	}
	return cmd, false, r.done()
}

const (
	answerGranted   = 1 << 0 // Success or Granted
	answerNoBackoff = 1 << 1
)

// answerBody returns the wire form of raft's answer, and the term it shows; 0:
// none. It returns nil for an unknown type.
func answerBody(response any) (n *numbers, term uint64) {
	switch r := response.(type) {
	case *raft.AppendEntriesResponse:
		flags := flag(r.Success, answerGranted) | flag(r.NoRetryBackoff, answerNoBackoff)
		return &numbers{byte(r.ProtocolVersion), flags, 2, [3]uint64{r.Term, r.LastLog}}, r.Term
	case *raft.RequestVoteResponse:
		return &numbers{byte(r.ProtocolVersion), flag(r.Granted, answerGranted), 1, [3]uint64{r.Term}}, r.Term
	case *raft.RequestPreVoteResponse:
		// Its term may be the proposed one, which nobody has adopted.
		return &numbers{byte(r.ProtocolVersion), flag(r.Granted, answerGranted), 1, [3]uint64{r.Term}}, 0
	case *raft.InstallSnapshotResponse:
		return &numbers{byte(r.ProtocolVersion), flag(r.Success, answerGranted), 1, [3]uint64{r.Term}}, r.Term
	case *raft.TimeoutNowResponse:
		return &numbers{version: byte(r.ProtocolVersion)}, 0
	}
	return nil, 0
}

// decodeAnswer fills response from the answer of the node called name.
func decodeAnswer(p, name []byte, response any) error {
	r := reader{p: p}
	h := rpcHeader(&r, name)
	flags := r.uint8()
	granted := flags&answerGranted != 0
	switch resp := response.(type) {
	case *raft.AppendEntriesResponse:
		*resp = raft.AppendEntriesResponse{
			RPCHeader: h, Term: r.uint64(), LastLog: r.uint64(),
			Success: granted, NoRetryBackoff: flags&answerNoBackoff != 0,
		}
		if err := r.done(); err != nil {
			*resp = raft.AppendEntriesResponse{}
			return err
		}
		return nil
	case *raft.RequestVoteResponse:
		*resp = raft.RequestVoteResponse{RPCHeader: h, Term: r.uint64(), Granted: granted}
	case *raft.RequestPreVoteResponse:
		*resp = raft.RequestPreVoteResponse{RPCHeader: h, Term: r.uint64(), Granted: granted}
	case *raft.InstallSnapshotResponse:
		*resp = raft.InstallSnapshotResponse{RPCHeader: h, Term: r.uint64(), Success: granted}
	case *raft.TimeoutNowResponse:
		*resp = raft.TimeoutNowResponse{RPCHeader: h}
	default:
		return fmt.Errorf("%w: answer into a %T", errProtocol, response)
	}
	return r.done()
}

// snapshotBody writes an InstallSnapshot request: version 1, snapshot version
// 1, term, last index, last term, configuration index, size (8 each),
// configuration. The snapshot follows in later messages.
type snapshotBody struct{ req *raft.InstallSnapshotRequest }

const snapshotHead = 1 + 1 + 5*8

func (s snapshotBody) size() int { return snapshotHead + len(s.req.Configuration) }

func (s snapshotBody) write(b *batch) {
	r := s.req
	p := b.reserve(snapshotHead)
	p[0], p[1] = byte(r.ProtocolVersion), byte(r.SnapshotVersion)
	putUint64s(p[2:], r.Term, r.LastLogIndex, r.LastLogTerm, r.ConfigurationIndex, uint64(r.Size))
	b.add(r.Configuration)
}

func decodeSnapshot(p, name []byte) (*raft.InstallSnapshotRequest, error) {
	r := reader{p: p}
	req := &raft.InstallSnapshotRequest{RPCHeader: rpcHeader(&r, name)}
	req.SnapshotVersion = raft.SnapshotVersion(r.uint8())
	req.Term, req.LastLogIndex, req.LastLogTerm = r.uint64(), r.uint64(), r.uint64()
	req.ConfigurationIndex, req.Size = r.uint64(), int64(r.uint64())
	req.Configuration = r.bytes(uint32(len(r.p)))
	if err := r.done(); err != nil {
		return nil, err
	}
	if req.Size < 0 || req.Size > maxSnapshot || req.SnapshotVersion < 1 {
		return nil, fmt.Errorf("%w: snapshot of size %d, version %d", errProtocol, req.Size, req.SnapshotVersion)
	}
	return req, nil
}
