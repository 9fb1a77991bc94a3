package queue

import "github.com/quorate/quorate/fsm"

// news are the effects of a command that are for consumers in credit mode. Others are
// told nothing of the kind.
type news struct {
	list     []fsm.Telling
	consumed *consumer // by the command: it is told last whether it is the single active one
}

// tell tells c of one more delivery or group, or what it is. One that has no session any
// more, and may still have groups, is told nothing.
func (n *news) tell(c *consumer, kind fsm.NewsKind, delivery uint64, group string) {
	if !c.link.on || c.session == nil {
		return
	}
	at := len(n.list) - 1
	if at < 0 || n.list[at].To != c.id || n.list[at].News.Kind != kind {
		n.list, at = append(n.list, fsm.Telling{To: c.id, News: fsm.News{Kind: kind}}), at+1
	}
	switch news := &n.list[at].News; kind {
	case fsm.LocksLost:
		news.Deliveries = append(news.Deliveries, delivery)
	case fsm.GroupsTaken, fsm.GroupsLeft:
		news.Groups = append(news.Groups, group)
	}
}

// elected tells those that are, or were, the single active consumer, and the one that
// the command has begun or changed. Any of them may be nil, or cancelled.
func (n *news) elected(before, single *consumer) {
	all := [...]*consumer{before, single, n.consumed}
	if before == single {
		all[0], all[1] = nil, nil
	}
	for i, c := range all {
		if c != nil && c.level != nil && (i == 2 || c != n.consumed) {
			n.tell(c, servingNews(c, single), 0, "")
		}
	}
	n.consumed = nil
}

// servingNews is what c is among the consumers of a queue with a single active one.
func servingNews(c, single *consumer) fsm.NewsKind {
	if c == single {
		return fsm.Serving
	}
	return fsm.Waiting
}

func (n *news) reset() {
	clear(n.list)
	n.list = n.list[:0]
}

// repeatNews appends what c, which is in credit mode, was told, perhaps in vain. serving
// is 0 if the queue has no single active consumer, t nil if c has nothing to do with groups.
func repeatNews(c *consumer, serving fsm.NewsKind, t *groupTaker, eff *fsm.Effects) {
	tell := func(n fsm.News) { eff.Tellings = append(eff.Tellings, fsm.Telling{To: c.id, News: n}) }
	if len(c.lockLost) > 0 {
		tell(fsm.News{Kind: fsm.LocksLost, Deliveries: c.lockLost})
	}
	if serving != 0 {
		tell(fsm.News{Kind: serving})
	}
	if t == nil {
		return
	}
	n := fsm.News{Kind: fsm.GroupsHeld}
	for g := range t.holds.Values(key{}) {
		n.Groups = append(n.Groups, g.id)
	}
	tell(n)
}
