package queues

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// MaxSelected bounds the messages of one answer, and of one SelectAll, see queue.Machine's Take.
	MaxSelected = 1000
	// searchesAtOnce is how many bounded searches a SelectAll makes until it has found as many as it is to find.
	searchesAtOnce = 100
	// maxLetterKinds bounds the kinds of letters that one answer tells apart.
	maxLetterKinds = 100
)

// Select asks the leader of a queue for the numbers of ready messages that meet the conditions of r, the oldest
// first. Messages may be handed out before the answer comes.
func (x *Inspector) Select(ctx context.Context, q *catalog.Queue, r *peerpb.SelectRequest) (*peerpb.SelectReply, error) {
	r.Group, r.Queue = uint32(q.Group), uint64(q.ID)
	a, err := askLeader(ctx, x.leaders, q, statsTimeout, self.KindSelect, r, func() *peerpb.SelectReply { return x.selectReady(r) })
	if err == nil && a.Gone {
		err = NoQueue(q)
	}
	return a, err
}

// SelectAll has use do something with what searches of a queue find, one after the other, until they have found s.Limit
// messages or seen all. s is then where the next one goes on.
func SelectAll(s *peerpb.SelectRequest, one func() (*peerpb.SelectReply, error), use func(*peerpb.SelectReply) error) error {
	left := s.Limit
	for n := 0; left > 0 && n < searchesAtOnce && (s.UpTo == 0 || s.After < s.UpTo); n++ {
		s.Limit = left
		found, err := one()
		if err == nil {
			err = use(found)
		}
		if err != nil {
			return err
		}
		left -= min(left, uint32(len(found.Messages)))
		if s.After, s.UpTo = found.Seen, found.UpTo; s.UpTo == 0 {
			break // it has never had a message
		}
	}
	return nil
}

// selectReady searches a led queue, once nothing in it is due. The empty entry committed first ensures that this node
// does lead it.
func (x *Inspector) selectReady(req *peerpb.SelectRequest) *peerpb.SelectReply {
	g := x.node.LedGroup(fsm.GroupID(req.Group), fsm.QueueID(req.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.SelectReply{}
	}
	r := ready(g, req, x.properties)
	r.Leader = true
	return r
}

// ready searches a queue for what is ready. It stops at the bounds of a search: what it has not seen is for another one.
func ready(g *group.Group, req *peerpb.SelectRequest, properties propertyReader) *peerpb.SelectReply {
	r := &peerpb.SelectReply{Seen: req.After, UpTo: req.UpTo}
	s := selection{SelectRequest: req, name: g.Spec().Name, now: g.Now(), payload: func(ref fsm.Ref) (fsm.Payload, error) {
		raw, err := g.Payload(ref)
		return fsm.Readable(raw), err
	}, properties: properties}
	limit, kinds := min(int(req.Limit), MaxSelected), letterKinds{at: map[kindOfLetter]*peerpb.LetterCount{}, reply: r}
	if req.Count {
		limit = MaxSelected // of the list, which stays empty
	}
	for left, bytes := searchedAtOnce, searchedBytes; left > 0 && bytes > 0; {
		b := queue.Browse{After: s.skip(r.Seen), Limit: min(searchedPage, left), Now: s.now}
		g.View(func(m *queue.Machine) {
			r.Gone = m.Stats().Phase != queue.Active
			b.Scan(m)
		})
		if r.UpTo == 0 {
			r.UpTo = b.Newest
		}
		if n := len(req.Messages); n > 0 {
			r.UpTo = min(r.UpTo, req.Messages[n-1])
		}
		for i := range b.Found {
			of := &b.Found[i]
			if len(r.Messages) == limit || of.Seq > r.UpTo || bytes <= 0 {
				break
			}
			left--
			r.Seen = of.Seq
			death := s.death(of)
			if !s.meets(of, death) || !s.reads(of, &bytes) {
				continue
			}
			if req.Count {
				kinds.count(death)
				continue
			}
			r.Messages = append(r.Messages, of.Seq)
			if req.Sources {
				r.Sources = append(r.Sources, death.GetQueue())
			}
		}
		if len(r.Messages) == limit || bytes <= 0 {
			return r
		}
		if r.Seen = min(max(r.Seen, b.Seen), r.UpTo); r.Seen == r.UpTo || r.Gone {
			return r
		}
	}
	return r
}

// kindOfLetter is what letters are told apart by.
type kindOfLetter struct {
	reason, source string
	other          bool
}

// letterKinds counts letters of an answer by their kinds.
type letterKinds struct {
	at    map[kindOfLetter]*peerpb.LetterCount
	reply *peerpb.SelectReply
}

// count counts a message with this death; nil: it has not died in another queue.
func (k *letterKinds) count(d *logpb.Death) {
	kind := kindOfLetter{source: d.GetQueue()}
	if d != nil {
		kind.reason = fsm.ReasonName(d.Reason)
	}
	if k.at[kind] == nil && len(k.at) >= maxLetterKinds {
		kind = kindOfLetter{other: true}
	}
	c := k.at[kind]
	if c == nil {
		c = &peerpb.LetterCount{Reason: kind.reason, Source: kind.source, Other: kind.other}
		k.at[kind] = c
		k.reply.Counts = append(k.reply.Counts, c)
	}
	c.Messages++
}

// selection is what one request asks for.
type selection struct {
	*peerpb.SelectRequest
	name       string // of the queue
	now        fsm.Time
	payload    func(fsm.Ref) (fsm.Payload, error)
	properties propertyReader
}

// propertyReader reads what conditions are about.
type propertyReader interface {
	Property(p fsm.Payload, name string) []byte
	Headers(p fsm.Payload, deaths []*logpb.Death) *fsm.Table
}

// skip returns the number up to which there is nothing that could be meant, from after on.
func (s *selection) skip(after uint64) uint64 {
	if i, _ := slices.BinarySearch(s.Messages, after+1); i < len(s.Messages) {
		return s.Messages[i] - 1
	}
	return after
}

// death returns the newest death of a message in another queue: from there it has come. nil: there is none.
func (s *selection) death(x *queue.Message) *logpb.Death {
	i := slices.IndexFunc(x.Deaths, func(d *logpb.Death) bool { return d.Queue != s.name })
	if i < 0 {
		return nil
	}
	return x.Deaths[i]
}

// meets reports whether a message meets the conditions that its payload has no part in.
func (s *selection) meets(x *queue.Message, death *logpb.Death) bool {
	age := uint64(max(s.now-x.EnqueuedAt, 0))
	if len(s.Messages) > 0 {
		if _, named := slices.BinarySearch(s.Messages, x.Seq); !named {
			return false
		}
	}
	if s.OfGroup != "" && x.Group != s.OfGroup {
		return false
	}
	old := age >= s.OlderThan
	if s.Before != 0 {
		old = x.EnqueuedAt < fsm.Time(s.Before)
	}
	return old && (s.YoungerThan == 0 || age < s.YoungerThan) &&
		(s.Source == "" || death.GetQueue() == s.Source) && (s.Reason == "" || death != nil && fsm.ReasonName(death.Reason) == s.Reason)
}

// reads reports whether a message meets the other conditions. bytes is what may still be read.
func (s *selection) reads(x *queue.Message, bytes *int) bool {
	if s.MessageId == "" && len(s.Headers) == 0 {
		return true
	}
	*bytes -= int(x.Ref.Size)
	p, err := s.payload(x.Ref)
	if err != nil || s.MessageId != "" && string(s.properties.Property(p, catalog.PropertyMessageID)) != s.MessageId {
		return false // it has gone meanwhile, or is another one
	}
	if len(s.Headers) == 0 {
		return true
	}
	have := tables.JSON(s.properties.Headers(p, nil))
	for name, value := range s.Headers { // det: all must be met
		if v, ok := have[name]; !ok || fmt.Sprint(v) != value {
			return false
		}
	}
	return true
}

// Found is how ready messages that were found are taken.
type Found struct {
	Takes []*logpb.Take // one for each queue that they go to
	// Letters that stay: their queue is gone, they died in no other one, or the user may not write where they died.
	SourceGone, NoSource, Refused uint64
	Why                           error // the first of those was refused; nil: none was
}

// FoundOf says how a user takes what was found in a queue: to another one, or redriven to where each died. to is 0 for
// what is deleted.
func FoundOf(v *catalog.View, by catalog.Client, vhost string, action logpb.Take_Action, to fsm.QueueID, found *peerpb.SelectReply) *Found {
	f, of := &Found{}, map[fsm.QueueID]*logpb.Take{}
	for i, n := range found.Messages {
		target := to
		if action == logpb.Take_REDRIVE && to == 0 {
			if found.Sources[i] == "" {
				f.NoSource++
				continue
			}
			if _, known := v.Queue(vhost, found.Sources[i]); !known {
				f.SourceGone++
				continue
			}
			q, err := v.UseQueue(by, catalog.Write, vhost, found.Sources[i])
			if err != nil {
				f.Refused, f.Why = f.Refused+1, cmp.Or(f.Why, err)
				continue
			}
			target = q.ID
		}
		t := of[target]
		if t == nil {
			t = &logpb.Take{Action: action, Target: uint64(target)}
			of[target] = t
			f.Takes = append(f.Takes, t)
		}
		t.Messages = append(t.Messages, n)
	}
	return f
}
