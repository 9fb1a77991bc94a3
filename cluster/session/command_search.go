package session

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Bounds of commands whose messages are searched for.
const (
	searchesWaiting = 16 // of a channel
	searchWait      = 10 * time.Second
)

// commandSearch finds the parts of a command at the leader of a queue.
type commandSearch struct {
	of   *clientCommand
	find func(ctx context.Context) ([]*commandPart, error)
}

// searchLater searches for the parts of a command when those of the channel before it have been found.
func (x *commandExchange) searchLater(s *commandSearch) {
	x.session.lock()
	defer x.session.unlock()
	if len(x.searches) == searchesWaiting {
		x.answer(s.of, false, fsm.Refuse(fsm.Unavailable, "too many commands of this channel are searching for messages"))
		return
	}
	if x.searches = append(x.searches, s); len(x.searches) == 1 && !x.node.Spawn("search for messages", x.searchAll) {
		x.searches = nil // the node is closing, and so is the channel
	}
}

// searchAll searches for the parts of one command after the other, and starts it. A panic ends the channel: otherwise
// nobody would answer.
func (x *commandExchange) searchAll() {
	done := false
	defer func() {
		if !done {
			x.session.fail()
		}
	}()
	for s := x.nextSearch(nil); s != nil; s = x.nextSearch(s) {
		ctx, cancel := context.WithTimeout(x.node.Life(), searchWait)
		parts, err := s.find(ctx)
		cancel()
		if err != nil {
			x.refuse(s.of, err)
			continue
		}
		s.of.parts = parts
		x.start(s.of)
	}
	done = true
}

// nextSearch returns the search behind one that is over; nil: there is none, or the channel has ended.
func (x *commandExchange) nextSearch(over *commandSearch) *commandSearch {
	x.session.lock()
	defer x.session.unlock()
	if over != nil {
		x.searches = x.searches[1:]
	}
	if x.session.closing || x.session.isLost {
		x.searches = nil
	}
	if len(x.searches) == 0 {
		return nil
	}
	return x.searches[0]
}

// taking is a command that takes messages that meet conditions.
type taking struct {
	in       *commandExchange
	by       catalog.Client
	from, to *catalog.Queue
	action   logpb.Take_Action
	request  *peerpb.SelectRequest
}

// find finds the messages, and nothing of it is taken if some is to go where the user may not write.
func (t *taking) find(ctx context.Context) (parts []*commandPart, err error) {
	all := &peerpb.SelectReply{}
	err = queues.SelectAll(t.request, func() (*peerpb.SelectReply, error) {
		return t.in.session.conn.in.answers.queues.Select(ctx, t.from, t.request)
	}, func(found *peerpb.SelectReply) error {
		all.Messages, all.Sources = append(all.Messages, found.Messages...), append(all.Sources, found.Sources...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	target := fsm.QueueID(0)
	if t.to != nil {
		target = t.to.ID
	}
	f := queues.FoundOf(t.in.node.View(), t.by, t.from.VHost, t.action, target, all)
	for _, c := range f.Takes {
		parts = append(parts, &commandPart{queue: t.from, command: &logpb.Command{Kind: logpb.Command_TAKE, Take: c}})
	}
	return parts, f.Why
}

// conditions reads which messages a command is about; given: by anything but their numbers.
func (h arguments) conditions() (s *peerpb.SelectRequest, given bool, err error) {
	s = &peerpb.SelectRequest{Limit: queues.MaxSelected}
	for name, at := range map[string]*string{"x-message-id": &s.MessageId, "x-reason": &s.Reason, "x-source": &s.Source} {
		text, has, err := h.text(name)
		if err != nil {
			return nil, false, err
		}
		*at, given = text, given || has
	}
	limit := uint64(queues.MaxSelected)
	for name, at := range map[string]*uint64{"x-older-than": &s.OlderThan, "x-younger-than": &s.YoungerThan, "x-limit": &limit} {
		most := int64(catalog.MaxTTL)
		if name == "x-limit" {
			most = queues.MaxSelected
		}
		n, has, err := h.within(name, 1, most)
		if err != nil {
			return nil, false, err
		}
		if has {
			*at, given = uint64(n), true
		}
	}
	s.Limit = uint32(limit)
	if v, has := h["x-match"]; has {
		if v.GetTag() != 'F' {
			return nil, false, h.invalid("x-match")
		}
		s.Headers, given = map[string]string{}, true
		for _, f := range v.GetTable().GetFields() {
			switch v := f.GetValue(); {
			case isText(v):
				s.Headers[f.GetName()] = string(v.GetStr())
			case isNumber(v):
				s.Headers[f.GetName()] = strconv.FormatInt(v.GetInt(), 10)
			case v.GetTag() == 't':
				s.Headers[f.GetName()] = strconv.FormatBool(v.GetInt() != 0)
			default:
				return nil, false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header 'x-match': '%s' of type '%s'", f.GetName(), fsm.TypeName(v.GetTag())))
			}
		}
	}
	return s, given, nil
}
