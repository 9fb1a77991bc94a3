package queue

import (
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/proto/logpb"
)

// partSize is about how long a part of a snapshot's head is, and how long a head is
// that is not divided.
const partSize = 1 << 20

// divide takes the lists out of a head, which it changes, and returns them in parts.
// Each has as much as goes into partSize, but at least one element. Lists that cannot
// be long stay. Equal heads are divided equally.
func divide(h *logpb.QueueSnapshot) []*logpb.QueueSnapshot {
	d := &divider{}
	split(d, &h.Targets, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.DeadTarget { return &p.Targets })
	split(d, &h.Sessions, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.SessionState { return &p.Sessions })
	split(d, &h.Consumers, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.ConsumerState { return &p.Consumers })
	split(d, &h.Ended, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.Session { return &p.Ended })
	split(d, &h.EndedAt, numberSize, func(p *logpb.QueueSnapshot) *[]int64 { return &p.EndedAt })
	split(d, &h.Returning, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.ReturningState { return &p.Returning })
	split(d, &h.Groups, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.GroupState { return &p.Groups })
	split(d, &h.EndedGroups, textSize, func(p *logpb.QueueSnapshot) *[]string { return &p.EndedGroups })
	split(d, &h.GroupTakers, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.GroupTakerState { return &p.GroupTakers })
	split(d, &h.Detached, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.DetachedState { return &p.Detached })
	split(d, &h.SeenIds, byteSize, func(p *logpb.QueueSnapshot) *[]byte { return &p.SeenIds })
	split(d, &h.SeenAfter, numberSize, func(p *logpb.QueueSnapshot) *[]uint64 { return &p.SeenAfter })
	h.Parts = uint64(len(d.parts))
	return d.parts
}

// addPart is the inverse of divide for one part: it adds what p lists to h.
func addPart(h, p *logpb.QueueSnapshot) {
	ids := append(h.SeenIds, p.SeenIds...)
	proto.Merge(h, p)
	h.SeenIds = ids
}

// divider fills parts one after the other. left is what is left of the last one.
type divider struct {
	parts []*logpb.QueueSnapshot
	left  int
}

// split moves a list to the parts. size bounds what an element takes there, and in is
// the list of a part.
func split[T any](d *divider, list *[]T, size func(T) int, in func(*logpb.QueueSnapshot) *[]T) {
	for _, x := range *list {
		n := size(x)
		if n > d.left && d.left < partSize || len(d.parts) == 0 {
			d.parts, d.left = append(d.parts, &logpb.QueueSnapshot{}), partSize
		}
		d.left -= n
		to := in(d.parts[len(d.parts)-1])
		*to = append(*to, x)
	}
	*list = nil
}

func messageSize[M proto.Message](m M) int { return proto.Size(m) + 8 }
func textSize(s string) int                { return len(s) + 8 }
func numberSize[N int64 | uint64](N) int   { return 10 }
func byteSize(byte) int                    { return 1 }
