package metrics

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// Objects are those that a node knows by itself: the queues of which it has a replica, and what its
// clients use and have opened.
type Objects struct {
	Queues      []Queue
	Exchanges   []Exchange
	Channels    []Channel
	Connections []Connection
}

// Queue is a queue as a node sees it.
type Queue struct {
	VHost, Name string
	Type        string   // as it was declared, whether it is replicated or not
	Led         *Lengths // nil: the node does not lead it
	Capacity    float64  // of its consumers, see queue.Capacity; if the node leads it
	// Ages of the oldest messages, if the node leads it; 0: there is none.
	OldestReady, OldestUnacked, OldestScheduled fsm.Millis
	Values                                      []HeaderValue
	Counts                                      *traffic.Counts   // of the node's clients; nil: there are none
	Raft                                        *replica.Progress // of the node's replica; nil: it has none, or keeps no log
	Snapshot                                    int64             // of the replica; -1: there is none
}

// HeaderValue counts messages of a queue that have the same value in the header that age-header names.
type HeaderValue struct {
	Value       string // empty: others, as there are too many
	Ready       uint64
	OldestReady fsm.Millis // 0: none is ready
}

// kind says what the queue is, and what the node is to it; an empty role: it has no replica here.
func (q *Queue) kind() (kind, role string) {
	switch {
	case q.Led != nil:
		role = "leader"
	case q.Raft != nil:
		role = "follower"
	}
	return "rabbit_" + q.Type + "_queue", role
}

// Exchange is one to which the node's clients have published.
type Exchange struct {
	VHost, Name string
	Counts      *traffic.Counts
}

// Channel is one of the node's clients.
type Channel struct {
	VHost, Name                       string
	Consumers, Prefetch               int
	Unacked, Unconfirmed, Uncommitted int
	Unsettled                         int
	Counts                            *traffic.Counts // nil: there are none
}

// Connection is one of the node's clients.
type Connection struct {
	VHost, Name    string
	Received, Sent uint64 // octets
	Channels       int
}

// SetObjects sets the source of objects.
func (m *Metrics) SetObjects(f func() Objects) { m.objects.Store(&f) }

// perObject answers with the metrics of the page, and those of each object in place of their sums.
func (m *Metrics) perObject(w http.ResponseWriter, _ *http.Request) {
	families, err := m.registry.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	rows := objectTable
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		return slices.ContainsFunc(rows, func(row objectMetric) bool { return aggregated+row.name == f.GetName() })
	})
	for _, f := range families {
		if f.GetName() == "rabbitmq_identity_info" {
			nameEndpoint(f, "per-object")
		}
	}
	to := newScrape(w)
	for _, f := range families {
		to.write(f)
	}
	m.writeObjects(to, aggregated, rows, nil)
}

// Prefixes of names.
const (
	aggregated = "rabbitmq_"
	byFamily   = "rabbitmq_detailed_"
)

// detailed answers with the metrics of objects of the families and vhosts that a request names;
// without a family: none.
func (m *Metrics) detailed(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	rows := slices.DeleteFunc(slices.Clone(objectTable), func(row objectMetric) bool { return !slices.Contains(q["family"], row.family) })
	m.writeObjects(newScrape(w), byFamily, rows, q["vhost"])
}

// writeObjects writes one metric after the other, line by line. vhosts empty: of all.
func (m *Metrics) writeObjects(to *scrape, prefix string, rows []objectMetric, vhosts []string) {
	source := m.objects.Load()
	if source == nil || len(rows) == 0 {
		return
	}
	all := (*source)()
	if len(vhosts) > 0 {
		all.keep(vhosts)
	}
	l := lines{to: to}
	for i := range rows {
		if l.row, l.name, l.head = &rows[i], prefix+rows[i].name, false; !to.failed {
			rows[i].read(&all, &l)
		}
	}
	l.flush()
}

// lines writes metrics of objects in the text format, in pieces of about pieceSize.
type lines struct {
	to    *scrape
	row   *objectMetric
	name  string
	head  bool // of the metric is written: it has a value
	piece []byte
}

const pieceSize = 64 << 10

func (l *lines) add(value float64, labels ...string) {
	p := l.piece
	if !l.head {
		p = append(append(append(p, "# HELP "...), l.name...), ' ')
		p = append(append(p, helpEscapes.Replace(l.row.help)...), "\n# TYPE "...)
		p = append(append(append(append(p, l.name...), ' '), kinds[l.row.kind]...), '\n')
		l.head = true
	}
	p = append(p, l.name...)
	for i, label := range l.row.labels {
		p = append(append(append(p, "{,"[min(i, 1)]), label...), '=', '"')
		p = append(append(p, labelEscapes.Replace(labels[i])...), '"')
	}
	p = strconv.AppendFloat(append(p, '}', ' '), value, 'g', -1, 64)
	if l.piece = append(p, '\n'); len(l.piece) >= pieceSize {
		l.flush()
	}
}

func (l *lines) flush() {
	if !l.to.failed {
		_, err := l.to.out.Write(l.piece)
		l.to.failed = err != nil // the client is gone
	}
	l.piece = l.piece[:0]
}

// What the text format escapes in a help text, and in a label.
var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// keep leaves the objects of vhosts.
func (o *Objects) keep(vhosts []string) {
	none := func(vhost string) bool { return !slices.Contains(vhosts, vhost) }
	o.Queues = slices.DeleteFunc(o.Queues, func(q Queue) bool { return none(q.VHost) })
	o.Exchanges = slices.DeleteFunc(o.Exchanges, func(x Exchange) bool { return none(x.VHost) })
	o.Channels = slices.DeleteFunc(o.Channels, func(c Channel) bool { return none(c.VHost) })
	o.Connections = slices.DeleteFunc(o.Connections, func(c Connection) bool { return none(c.VHost) })
}

// scrape is an answer in the text format, which every scraper accepts.
type scrape struct {
	out    io.Writer
	encode expfmt.Encoder
	failed bool
}

func newScrape(w http.ResponseWriter) *scrape {
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	w.Header().Set("Content-Type", string(format))
	return &scrape{out: w, encode: expfmt.NewEncoder(w, format)}
}

// write writes a metric that has values.
func (p *scrape) write(f *dto.MetricFamily) {
	if !p.failed && len(f.Metric) > 0 {
		p.failed = p.encode.Encode(f) != nil // the client is gone
	}
}

// bounded answers as many requests at a time as the channel has space for, and 503 to others.
func bounded(scrapes chan struct{}, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case scrapes <- struct{}{}:
			defer func() { <-scrapes }()
			h(w, r)
		default:
			http.Error(w, "too many scrapes at a time", http.StatusServiceUnavailable)
		}
	})
}
