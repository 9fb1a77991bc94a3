package membership

import (
	"errors"
	"fmt"

	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// Explain tells the lives of messages of a queue from the data folder of a node that
// has stopped. It changes nothing that the node would miss.
func Explain(o RecoverOptions, vhost, queue string, wanted explain.Wanted) (x api.Explanation, err error) {
	r, err := openFolder(o.DataDir, o)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	q, ok := r.view.Queue(vhost, queue)
	switch {
	case !ok:
		return x, fmt.Errorf("no queue %s in vhost %s", queue, vhost)
	case q.Local:
		return x, fmt.Errorf("%s: %w", q, group.ErrNoHistory)
	}
	log, err := r.store.Group(q.Group)
	if err != nil {
		return x, err
	}
	t := explain.New(q, fsm.Supported.Newest, wanted, r.view)
	if _, err := group.ReplayStored(log, t); err != nil {
		return x, fmt.Errorf("%s: %w", q, err)
	}
	x = t.Explanation(q, r.node)
	x.Uncertain = true
	return x, nil
}
