package fsmtest

import "github.com/quorate/quorate/proto/logpb"

func (g *generator) firstUnrouted() uint64 {
	for _, x := range g.q.letters {
		if !x.routed {
			return x.letter
		}
	}
	return g.q.nextLetter
}

// manyRoutes returns more routes than there are letters in most outboxes. One
// of them names a queue twice, and one that cannot be.
func manyRoutes() []*logpb.DeadRoute {
	routes := make([]*logpb.DeadRoute, 18)
	for i := range routes {
		routes[i] = &logpb.DeadRoute{Targets: []uint64{500 + uint64(i%3)}}
	}
	routes[1].Targets = []uint64{501, 502, 501, 0}
	return routes
}
