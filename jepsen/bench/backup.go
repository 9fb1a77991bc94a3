package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// backupPublishers publish during a backup, each to a queue of its own.
	backupPublishers = 4
	// backupCalm is how long they publish before the backup and between two of them.
	backupCalm = 10 * time.Second
	// backupWindow is how many messages of a publisher may be unconfirmed.
	backupWindow = 500
	// backupTimeout bounds a backup and a restore.
	backupTimeout = 10 * time.Minute
)

// backups are made of a running cluster under load, and the last one is brought back.
type backups struct {
	*lab
	tool    string
	size    int
	backlog int
	rate    int // messages a second
	live    []*publisher
	queues  []queue
	files   string
	// counts are the confirmed messages of each publisher; confirmed are those before the last
	// backup began.
	counts, confirmed []uint64
}

func runBackup(ctx context.Context, fs *flag.FlagSet, args []string) error {
	b := &backups{lab: labFlags(fs)}
	fs.StringVar(&b.tool, "tool", "bin/quoratectl", "the quoratectl `binary`")
	fs.IntVar(&b.size, "size", 1000, "`bytes` of a message")
	fs.IntVar(&b.backlog, "backlog", 300_000, "`messages` that wait before")
	fs.IntVar(&b.rate, "rate", 5000, "`messages` a second that are published meanwhile")
	if err := parse(fs, args); err != nil {
		return err
	}
	if b.size < bodyHead || b.backlog < fillers || b.rate < backupPublishers {
		return fmt.Errorf("-size must be at least %d, -backlog %d, -rate %d", bodyHead, fillers, backupPublishers)
	}
	all, err := b.run(ctx)
	return errors.Join(err, publishResults(all, b.json))
}

// run makes one backup at the default rate and one as fast as it goes, and brings the second one
// back to another cluster.
func (b *backups) run(ctx context.Context) (all []result, err error) {
	err = inFolder(b.dir, func(dir string) error {
		b.files = dir
		err := b.with(ctx, func() (err error) {
			all, err = b.make(ctx)
			return err
		})
		if err != nil {
			return err
		}
		return b.with(ctx, func() error {
			r, err := b.restore(ctx)
			all = append(all, r)
			return err
		})
	})
	return all, err
}

// make fills a queue, and makes backups while others are filled.
func (b *backups) make(ctx context.Context) (all []result, err error) {
	b.queues = []queue{{name: "bench-backup"}}
	for i := range backupPublishers {
		b.queues = append(b.queues, queue{name: "bench-backup-" + strconv.Itoa(i)})
	}
	if err := b.target.declare(b.queues...); err != nil {
		return nil, err
	}
	fill := &load{}
	for i := range fillers {
		fill.publishers = append(fill.publishers, b.publisher(i, b.queues[0].name, upTo(b.backlog*(i+1)/fillers-b.backlog*i/fillers)))
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	b.counts = fill.publish(running, fail)
	if err := context.Cause(running); err != nil {
		return nil, err
	}
	progress("%d messages wait", b.backlog)
	publishing, end := context.WithCancel(running)
	defer end()
	live := &load{}
	for i := range backupPublishers {
		p := b.publisher(fillers+i, b.queues[1+i].name, func(uint64) bool { return publishing.Err() == nil })
		p.interval, p.taken = time.Second*backupPublishers/time.Duration(b.rate), &samples{}
		live.publishers = append(live.publishers, p)
	}
	b.live = live.publishers
	var publishers sync.WaitGroup
	publishers.Go(func() { live.publish(running, fail) })
	b.counts = append(b.counts, make([]uint64, backupPublishers)...)
	all, err = b.both(running)
	end()
	publishers.Wait()
	return all, errors.Join(err, context.Cause(running))
}

func (b *backups) publisher(id int, queue string, more func(uint64) bool) *publisher {
	return &publisher{id: uint32(id), uri: b.target.uri(id), queues: []string{queue}, size: b.size, window: backupWindow, more: more}
}

// both measures confirms without a backup, and during both.
func (b *backups) both(ctx context.Context) (all []result, err error) {
	for _, way := range []struct {
		name string
		args []string
	}{{"backup at 32 MiB/s", nil}, {"backup without a limit", []string{"--rate", strconv.Itoa(1 << 39)}}} {
		b.took() // what was before
		if err := pause(ctx, backupCalm); err != nil {
			return all, err
		}
		before := b.took()
		b.confirmed = slices.Clone(b.counts)
		r, err := b.create(ctx, way.name, way.args)
		during := b.took()
		if err != nil {
			return all, err
		}
		r.Times = quantilesOf(during)
		calm := quantilesOf(before)
		r.note("confirms without a backup, 99 %", calm.P99, "ms")
		r.note("confirms without a backup, 50 %", calm.P50, "ms")
		all = append(all, r)
	}
	return all, nil
}

// took returns the times of confirms since the last call, and counts them.
func (b *backups) took() (all []time.Duration) {
	for i, p := range b.live {
		times := p.taken.take()
		b.counts[fillers+i] += uint64(len(times))
		all = append(all, times...)
	}
	return all
}

// create makes a backup.
func (b *backups) create(ctx context.Context, name string, args []string) (result, error) {
	r := result{Name: name}
	var made struct {
		File     string `json:"file"`
		Messages int    `json:"messages"`
	}
	began := clock()
	if err := b.ctl(ctx, &made, append([]string{"backup", "create", b.files}, args...)...); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	b.enter(&r, made.Messages, clock()-began)
	info, err := os.Stat(made.File)
	if err != nil {
		return r, err
	}
	r.note("of the file", float64(info.Size())/1e9/r.Seconds*60, "GB/min")
	return r, nil
}

func (b *backups) enter(r *result, messages int, took time.Duration) {
	r.Messages, r.Seconds = messages, took.Seconds()
	r.PerSecond = float64(messages) / r.Seconds
}

// ctl runs quoratectl at a node that leads no more queues than the others.
func (b *backups) ctl(ctx context.Context, out any, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, backupTimeout)
	defer cancel()
	text, err := exec.CommandContext(ctx, b.tool, append([]string{"-q", "--node", b.cluster.Nodes[2].HTTP, "--formatter", "json"}, args...)...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// restore brings the newest backup back, and takes all messages: each that was confirmed before it
// began must come, and none twice.
func (b *backups) restore(ctx context.Context) (r result, err error) {
	r.Name = "restore"
	files, err := filepath.Glob(filepath.Join(b.files, "*.backup"))
	if err != nil || len(files) == 0 {
		return r, errors.Join(err, errors.New("no backup"))
	}
	info, err := os.Stat(files[len(files)-1])
	if err != nil {
		return r, err
	}
	var done struct {
		Messages int `json:"messages"`
	}
	began := clock()
	if err := b.ctl(ctx, &done, "backup", "restore", b.files); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	b.enter(&r, done.Messages, clock()-began)
	r.note("of the file", float64(info.Size())/1e9/r.Seconds*60, "GB/min")
	book := newLedger(len(b.confirmed), b.size)
	l := &load{ledger: book}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	var consumers sync.WaitGroup
	defer consumers.Wait()
	defer stop()
	errs := make([]error, len(b.queues))
	for i, q := range b.queues {
		c := &consumer{uri: b.target.uri(i), queue: q.name, prefetch: 500, ackEvery: 50, ledger: book}
		if err := c.subscribe(); err != nil {
			return r, err
		}
		consumers.Go(func() { errs[i] = c.run(consuming) })
	}
	err = l.await(ctx, uint64(done.Messages))
	stop()
	consumers.Wait()
	return r, errors.Join(err, errors.Join(errs...), book.covers(b.confirmed))
}

// covers returns an error if one of the first messages of a publisher has not come, or any twice.
func (l *ledger) covers(first []uint64) error {
	for p, e := range l.entries {
		lost := 0
		for n := range first[p] {
			if n/64 >= uint64(len(e.seen)) || e.seen[n/64]&(1<<(n%64)) == 0 {
				lost++
			}
		}
		if lost > 0 || e.doubled > 0 {
			return fmt.Errorf("publisher %d: of %d messages confirmed before the backup began %d are lost; %d came twice", p, first[p], lost, e.doubled)
		}
	}
	return nil
}
