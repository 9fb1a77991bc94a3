package deadletter

import (
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// retryLetters looks for ways for letters that had none, when the catalog has
// changed and every so often: a target that refused may have a place again.
// It looks at some of them, by number, and goes on with the next ones in the
// next run, so that neither the queue nor a payload store has to wait for it.
func (x *outboxSender) retryLetters() {
	if !x.sender.host.Fresh() {
		return
	}
	var config *logpb.QueueConfig
	x.group.View(func(m *queue.Machine) { config = m.Config() })
	view := x.sender.host.View()
	if !x.retrying {
		passed := x.sender.host.Now() - x.retriedAt
		if view == x.retriedIn && config == x.retriedAs && passed >= 0 && passed < retryEvery {
			return
		}
		x.retriedIn, x.retriedAs, x.retriedAt = view, config, x.sender.host.Now()
		x.retrying, x.retried = true, 0
	}
	r := &logpb.RouteDead{Retry: true}
	for seen := 0; x.retrying && seen < retryAtOnce && len(r.Routes) < routeAtOnce; {
		var letters []queue.Letter
		x.group.View(func(m *queue.Machine) { letters = m.WaitingLetters(x.retried, routeAtOnce-len(r.Routes)) })
		x.retrying = len(letters) > 0
		for i := range letters {
			route := x.routeLetter(view, config, &letters[i])
			route.Letter = letters[i].Number
			if len(route.Targets) > 0 || config.DelayedStore {
				r.Routes = append(r.Routes, route)
			}
			x.retried = route.Letter
		}
		seen += len(letters)
	}
	if len(r.Routes) > 0 {
		x.propose(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
	}
}
