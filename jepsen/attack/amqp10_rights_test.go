package attack

import (
	"errors"
	"testing"

	"github.com/Azure/go-amqp"
)

// dial10 connects the party's user by AMQP 1.0 to the first node.
func (p *party) dial10() (*amqp.Session, error) {
	p.Helper()
	c, err := amqp.Dial(p.Context(), "amqp://"+p.c.Nodes[0].AMQP, &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(p.user, p.user), HostName: "vhost:" + p.vhost})
	if err != nil {
		return nil, err
	}
	p.Cleanup(func() { _ = c.Close() })
	return c.NewSession(p.Context(), nil)
}

func (p *party) must10(s *amqp.Session, err error) *amqp.Session {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
	return s
}

// conditionOf is that of an error of a link, a session or a connection, or of a rejection.
func conditionOf(err error) amqp.ErrCond {
	if e, ok := errors.AsType[*amqp.LinkError](err); ok && e.RemoteErr != nil {
		return e.RemoteErr.Condition
	}
	if e, ok := errors.AsType[*amqp.ConnError](err); ok && e.RemoteErr != nil {
		return e.RemoteErr.Condition
	}
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		return e.Condition
	}
	return ""
}

// TestRights10: whoever is connected by AMQP 1.0 may do no more than by 0-9-1, and no longer.
func TestRights10(t *testing.T) {
	told := func(want amqp.ErrCond, name string, try func(p *party) error) {
		attack(t, "rights", "1.0: "+name, func(t *testing.T) {
			p := newParty(t)
			if _, err := p.owner.QueueDeclare("q", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			if err := try(p); conditionOf(err) != want {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	refused := func(name string, try func(p *party) error) { told(amqp.ErrCondUnauthorizedAccess, name, try) }
	refused("a receiver without read", func(p *party) error {
		p.grant(".*", ".*", "none")
		s := p.must10(p.dial10())
		_, err := s.NewReceiver(p.Context(), "/queues/q", nil)
		if _, e := s.NewSender(p.Context(), "/queues/q", nil); e != nil {
			p.Errorf("its session has gone with it: %v", e)
		}
		return err
	})
	refused("a sender without write", func(p *party) error {
		p.grant(".*", "none", ".*")
		_, err := p.must10(p.dial10()).NewSender(p.Context(), "/exchanges/amq.topic/k", nil)
		return err
	})
	refused("a message that says where it goes, without write", func(p *party) error {
		p.grant(".*", "amq.topic", ".*")
		sender, err := p.must10(p.dial10()).NewSender(p.Context(), "", nil)
		if err != nil {
			p.Fatal(err)
		}
		to := "/exchanges/amq.direct/k"
		return sender.Send(p.Context(), &amqp.Message{Properties: &amqp.MessageProperties{To: &to}, Data: [][]byte{nil}}, nil)
	})
	refused("a user-id of another", func(p *party) error {
		sender, err := p.must10(p.dial10()).NewSender(p.Context(), "/queues/q", nil)
		if err != nil {
			p.Fatal(err)
		}
		return sender.Send(p.Context(), &amqp.Message{Properties: &amqp.MessageProperties{UserID: []byte("guest")}, Data: [][]byte{nil}}, nil)
	})
	refused("a vhost of others", func(p *party) error {
		p.vhost = "/"
		_, err := p.dial10()
		return err
	})
	refused("read is taken from a receiver", func(p *party) error {
		receiver, err := p.must10(p.dial10()).NewReceiver(p.Context(), "/queues/q", nil)
		if err != nil {
			p.Fatal(err)
		}
		p.grant(".*", ".*", "none")
		_, err = receiver.Receive(p.Context(), nil)
		return err
	})
	refused("write is taken from a sender", func(p *party) error {
		sender, err := p.must10(p.dial10()).NewSender(p.Context(), "/exchanges/amq.topic/k", nil)
		if err != nil {
			p.Fatal(err)
		}
		p.grant(".*", "none", ".*")
		for {
			if err := sender.Send(p.Context(), amqp.NewMessage(nil), nil); conditionOf(err) != "" || p.Context().Err() != nil {
				return err
			}
		}
	})
	told(amqp.ErrCondConnectionForced, "the user is deleted", func(p *party) error {
		receiver, err := p.must10(p.dial10()).NewReceiver(p.Context(), "/queues/q", nil)
		if err != nil {
			p.Fatal(err)
		}
		p.admin("DELETE", p.path("users", p.user), nil)
		_, err = receiver.Receive(p.Context(), nil)
		return err
	})
}
