package fsmtest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// notice is one thing that a consumer in credit mode is notice.
type notice struct {
	to       fsm.ConsumerID
	kind     fsm.NewsKind
	delivery uint64
	group    string
}

// tell tells c something, if it is in credit mode and has a session.
func (q *model) tell(c *consumer, kind fsm.NewsKind, delivery uint64, group string) {
	if c.link.mode && slices.Contains(q.consumers, c) {
		q.news = append(q.news, notice{c.id, kind, delivery, group})
	}
}

// tellServed tells c, if it lives, whether it is the single active consumer.
func (q *model) tellServed(c *consumer) {
	if c != nil && c.id.Number != 0 && !c.cancelled {
		q.tell(c, q.servedNews(c), 0, "")
	}
}

func (q *model) servedNews(c *consumer) fsm.NewsKind {
	if c == q.single {
		return fsm.Serving
	}
	return fsm.Waiting
}

// repeatedNews is what c is notice again when its session asks.
func (q *model) repeatedNews(c *consumer) (all []notice) {
	if !c.link.mode || c.cancelled {
		return nil
	}
	for _, id := range c.lost {
		all = append(all, notice{c.id, fsm.LocksLost, id, ""})
	}
	if q.config.SingleActive {
		all = append(all, notice{c.id, q.servedNews(c), 0, ""})
	}
	for _, g := range q.groups {
		if g.holder == c && !g.leaves {
			all = append(all, notice{c.id, fsm.GroupsHeld, 0, g.id})
		}
	}
	return all
}

// flatNews are tellings in an order of their own: of one command the order means nothing.
func flatNews(tellings []fsm.Telling) (all []notice) {
	for _, t := range tellings {
		for _, id := range t.News.Deliveries {
			all = append(all, notice{t.To, t.News.Kind, id, ""})
		}
		for _, g := range t.News.Groups {
			all = append(all, notice{t.To, t.News.Kind, 0, g})
		}
		if len(t.News.Deliveries)+len(t.News.Groups) == 0 && t.News.Kind != fsm.GroupsHeld {
			all = append(all, notice{t.To, t.News.Kind, 0, ""})
		}
	}
	return sortedNews(all)
}

func sortedNews(all []notice) []notice {
	slices.SortFunc(all, func(a, b notice) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return all
}
