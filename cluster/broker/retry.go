package broker

import (
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// retryLetters looks for ways for letters that had none, when the catalog has
// changed and every so often: a target that refused may have a place again.
// It looks at some of them, by number, and goes on with the next ones in the
// next run, so that neither the queue nor a payload store has to wait for it.
func (f *forwarder) retryLetters() {
	if !f.broker.config.Catalog.Fresh() {
		return
	}
	var config *logpb.QueueConfig
	f.group.View(func(m *queue.Machine) { config = m.Config() })
	view := f.broker.view()
	if !f.retrying {
		passed := f.broker.now() - f.retriedAt
		if view == f.retriedIn && config == f.retriedAs && passed >= 0 && passed < retryEvery {
			return
		}
		f.retriedIn, f.retriedAs, f.retriedAt = view, config, f.broker.now()
		f.retrying, f.retried = true, 0
	}
	r := &logpb.RouteDead{Retry: true}
	for seen := 0; f.retrying && seen < retryAtOnce && len(r.Routes) < routeAtOnce; {
		var letters []queue.Letter
		f.group.View(func(m *queue.Machine) { letters = m.WaitingLetters(f.retried, routeAtOnce-len(r.Routes)) })
		f.retrying = len(letters) > 0
		for i := range letters {
			route := f.routeLetter(view, config, &letters[i])
			route.Letter = letters[i].Number
			if len(route.Targets) > 0 || config.DelayedStore {
				r.Routes = append(r.Routes, route)
			}
			f.retried = route.Letter
		}
		seen += len(letters)
	}
	if len(r.Routes) > 0 {
		f.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	}
}
