package replica

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// MaxAppendEntries is how many entries a request has at most.
const MaxAppendEntries = 32

// BoundedTransport is a transport whose requests fit into a message of the mesh. Raft
// bounds a request by the number of its entries only; it goes on behind the
// last one that the request has in the end. Only a follower that lags gets
// more than fits: a pipeline that refuses a request makes raft come here.
//
// It sends entries whole, although raft reads them without the payload sections
// that are not in memory.
type BoundedTransport struct {
	Transport
	Log      boundedLog
	Sections sections
	Throttle requestThrottle
}

// boundedLog is what a bounded transport needs of a replica.
type boundedLog interface {
	LastIndex() uint64
	NudgeSoon()
}

// sections reads the payload section that an entry was read without, see raftlog.Group.Complete.
type sections interface{ Complete(l *raft.Log) error }

// requestThrottle holds requests to members that lag much back.
type requestThrottle interface {
	Reserve(id raft.ServerID, bytes int) (done func())
	Pause(id raft.ServerID, took time.Duration, entries int)
}

// MaxRequestBytes is little beside what fits into a message: entries of other
// groups wait behind it.
const MaxRequestBytes = 4 << 20

// AppendEntries implements raft.Transport.
func (b BoundedTransport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for i, l := range args.Entries {
		if err := b.Sections.Complete(l); err != nil {
			return err
		}
		size += len(l.Data) + len(l.Extensions)
		if i > 0 && size > MaxRequestBytes {
			args.Entries = args.Entries[:i]
			size -= len(l.Data) + len(l.Extensions)
			break
		}
	}
	n := len(args.Entries)
	if n > 0 && b.Log.LastIndex() > args.Entries[n-1].Index+lagsMuch {
		defer b.Throttle.Reserve(id, size)()
	}
	began := time.Now()
	err := b.Transport.AppendEntries(id, addr, args, resp)
	if err == nil && n > 0 && b.Log.LastIndex() > args.Entries[n-1].Index+lagsMuch {
		b.Throttle.Pause(id, time.Since(began), n)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (b BoundedTransport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := b.Transport.AppendEntriesPipeline(id, addr)
	return boundedPipeline{p, b.Log, b.Sections}, err
}

// boundedPipeline is a pipeline to a follower that does not lag much. Each time raft is
// triggered it sends one request through a pipeline, of MaxAppendEntries at
// most: in a queue in which nothing happens any more nothing would trigger the
// next one. Without a pipeline raft sends one request after the other, up to the
// last entry, and waits for each answer.
type boundedPipeline struct {
	raft.AppendPipeline
	log      boundedLog
	sections sections
}

// lagsMuch is how many entries behind a follower lags much.
const lagsMuch = 8 * MaxAppendEntries

// errLags makes raft give the pipeline up.
var errLags = errors.New("a follower lags: entries are sent to it without a pipeline")

// AppendEntries implements raft.AppendPipeline. If entries are left behind a full
// request, raft is triggered again.
func (p boundedPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if n := len(args.Entries); n == MaxAppendEntries {
		sent, last := args.Entries[n-1].Index, p.log.LastIndex()
		if last > sent {
			p.log.NudgeSoon()
		}
		if last > sent+lagsMuch {
			return nil, errLags
		}
	}
	for _, l := range args.Entries {
		if err := p.sections.Complete(l); err != nil {
			return nil, err
		}
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}
