package peer

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// troubled is a listener at which nothing can be accepted while trouble lasts.
type troubled struct {
	net.Listener
	trouble atomic.Bool
	failed  atomic.Int64
}

func (l *troubled) Accept() (net.Conn, error) {
	if l.trouble.Load() {
		l.failed.Add(1)
		return nil, &net.OpError{Op: "accept", Err: syscall.ENETDOWN}
	}
	return l.Listener.Accept()
}

// A node that can accept no connections for a while does so again when it can, without trying all the time.
func TestAcceptsAfterTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listeners := map[string]*troubled{}
		c := newCluster(t, false, 2, func(cfg *Config) {
			l := &troubled{Listener: cfg.Listener}
			l.trouble.Store(true)
			listeners[cfg.Node], cfg.Listener = l, l
			cfg.Failed = func(err error) { t.Errorf("%s has failed: %v", cfg.Node, err) }
		})
		n1, n2 := c.create("n1"), c.create("n2")
		n1.Start()
		n2.Start()
		time.Sleep(time.Minute)
		if n := listeners["n2"].failed.Load(); n < 10 || n > 100 {
			t.Errorf("tried %d times in a minute", n)
		}
		if n1.Alive("n2") {
			t.Error("there is a link")
		}
		for _, l := range listeners {
			l.trouble.Store(false)
		}
		mustLink(t, n1, n2)
		n1.Close()
		n2.Close()
	})
}

// A node whose listener is gone says so: no other node will reach it again. One that is closed, or refuses, does not.
func TestListenerIsGone(t *testing.T) {
	for _, gone := range []bool{true, false} {
		var listener net.Listener
		failed := make(chan error, 1)
		c := newCluster(t, true, 1, func(cfg *Config) { listener, cfg.Failed = cfg.Listener, func(err error) { failed <- err } })
		n1 := c.create("n1")
		n1.Start()
		if gone {
			listener.Close()
			if err := <-failed; err == nil {
				t.Error("no reason is given")
			}
		} else {
			n1.Refuse()
		}
		n1.Close()
		if len(failed) > 0 {
			t.Errorf("a node that was closed has failed: %v", <-failed)
		}
	}
}
