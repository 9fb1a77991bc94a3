package session

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxGroupState bounds the state of one group.
const maxGroupState = 256 << 10

// groupVerb returns a verb about a group that a consumer of this channel holds.
func groupVerb(action logpb.Group_Action) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		var words []string
		for _, name := range []string{"x-queue", "x-group-id", "x-consumer-tag"} {
			s, given, err := r.headers.text(name)
			if err == nil && (!given || s == "" && name != "x-queue") {
				err = fsm.Refuse(fsm.Precondition, "commands about groups require x-queue, x-group-id and x-consumer-tag")
			}
			if err != nil {
				return nil, err
			}
			words = append(words, s)
		}
		q, err := r.view.TakeFrom(x.conn.by(), x.conn.vhost, words[0])
		if err != nil {
			return nil, err
		}
		number, err := x.consumerAt(q, r.publish.Holdings, words[2])
		if err != nil {
			return nil, err
		}
		c := &logpb.Group{Action: action, Id: words[1], Consumer: number}
		if action == logpb.Group_SET_STATE {
			if c.State = r.publish.Payload.Body(); len(c.State) > maxGroupState {
				return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("the state of a group may have at most %d bytes, not %d", maxGroupState, len(c.State)))
			}
		}
		return []*commandPart{{
			queue: q, command: &logpb.Command{Kind: logpb.Command_GROUP, Group: c}, result: commandResult{GroupID: c.Id},
			what: fmt.Sprintf("group '%s' that a consumer holds in %s, or no space for its state", c.Id, q),
		}}, nil
	}
}
