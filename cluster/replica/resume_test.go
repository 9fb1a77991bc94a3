package replica

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// unanswered is a transport over which nobody answers.
type unanswered struct{ Transport }

var errUnanswered = errors.New("nobody answers")

func (unanswered) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest, *raft.RequestVoteResponse) error {
	return errUnanswered
}

// A leader that wakes is given the votes of the term that it has led in, and none of another one.
func TestResumedVotes(t *testing.T) {
	of := &Resumption{Leads: true, Term: 7, started: make(chan struct{})}
	close(of.started)
	v := resumedLinks{unanswered{}, of, nil}
	for _, term := range []uint64{6, 7, 8} {
		resp := new(raft.RequestVoteResponse)
		err := v.RequestVote("b", "b", &raft.RequestVoteRequest{Term: term}, resp)
		if granted := term == of.Term; resp.Granted != granted || (err == nil) != granted {
			t.Errorf("term %d: %+v, %v", term, resp, err)
		}
	}
}
