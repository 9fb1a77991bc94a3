package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/backup/archive"
)

const (
	backupSuffix  = ".backup"
	partialSuffix = ".partial" // until a backup is whole
	// backupLimit is how long a backup or a restore may take by default, in seconds.
	backupLimit = 7 * 24 * 3600
)

func backupVerbs() []verb {
	return []verb{{
		name: "backup", about: "backs up a running cluster, and restores a backup",
		verbs: []verb{
			{name: "create", arguments: "DIR|-", least: 1, maxArguments: 1, timeout: backupLimit, run: createBackup, about: "makes a backup of the cluster in a folder, or writes it to - (the output)", options: []option{{"rate", "maximum rate, in `BYTES` per second", ""}}, example: "/var/backups/quorate --rate 50000000"},
			{name: "verify", arguments: "PATH|-", least: 1, maxArguments: 1, timeout: backupLimit, run: verifyBackup, about: "checks that a backup is complete and undamaged: a file, the newest one in a folder, or - (the input)", example: "/var/backups/quorate"},
			{name: "restore", arguments: "PATH", least: 1, maxArguments: 1, timeout: backupLimit, run: restoreBackup, about: "restores a backup to a cluster: a file, or the newest one in a folder", options: []option{vhostPattern, queuePattern}, example: "/var/backups/quorate --vhost-pattern '^shop$'"},
		},
	}}
}

// backupSummary is what is shown of a backup.
type backupSummary struct {
	File     string `json:"file,omitempty"`
	Cluster  string `json:"cluster_name"`
	Product  string `json:"product_version"`
	Begun    int64  `json:"begun"` // ms since the epoch
	Queues   int    `json:"queues"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"payload_bytes"`
}

// showBackup shows what is in a backup, and where: in a file, if it has a name.
func showBackup(c *call, file string, v *archive.Verified) error {
	messages, bytes := v.Messages()
	s := backupSummary{file, v.Info.Cluster, v.Info.Product, v.Info.Begun, len(v.Sections), messages, bytes}
	var shown []field
	if file != "" {
		shown = []field{{"file", file}}
	}
	return c.show(s, "The backup is complete.", append(shown, field{"cluster_name", s.Cluster}, field{"product_version", s.Product},
		field{"begun", time.UnixMilli(s.Begun).UTC().Format(time.RFC3339)}, field{"queues", s.Queues}, field{"messages", s.Messages}, field{"payload_bytes", s.Bytes})...)
}

// createBackup receives a backup and checks it on the way.
func createBackup(c *call) error {
	query, err := c.rate()
	if err != nil {
		return err
	}
	if c.words[0] == "-" {
		_, err := receiveBackup(c, query, c.out)
		return err
	}
	dir := c.words[0]
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &exitError{exitData, err}
	}
	name := filepath.Join(dir, "quorate-"+time.Now().UTC().Format("20060102T150405.000Z")+backupSuffix)
	var v *archive.Verified
	if err := writeWhole(name, func(to io.Writer) (err error) {
		v, err = receiveBackup(c, query, to)
		return err
	}); err != nil {
		return err
	}
	return showBackup(c, name, v)
}

// writeWhole writes a file that only its owner can read, and that has its name only once it is whole and on the disk.
func writeWhole(name string, write func(to io.Writer) error) error {
	f, err := os.OpenFile(name+partialSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return &exitError{exitData, err}
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(name+partialSuffix, name)
	}
	if err == nil {
		return syncFolder(filepath.Dir(name))
	}
	return errors.Join(err, os.Remove(name+partialSuffix))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// receiveBackup copies the node's answer, and reads it as a backup meanwhile.
func receiveBackup(c *call, query string, to io.Writer) (*archive.Verified, error) {
	res, err := c.client.stream(c, "/api/quorate/backup"+query, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	end := c.progress(c.movedBytes("received"))
	defer end()
	return archive.Verify(io.TeeReader(res.Body, &counter{to: to, n: &c.moved}))
}

// counter counts what it passes on.
type counter struct {
	to io.Writer
	n  *atomic.Int64
}

func (w *counter) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	w.n.Add(int64(n))
	return n, err
}

// openBackup opens a backup: a file, or the newest one of a folder.
func openBackup(at string) (*os.File, error) {
	info, err := os.Stat(at)
	if err == nil && info.IsDir() {
		var names []string
		names, err = filepath.Glob(filepath.Join(at, "*"+backupSuffix))
		if err == nil && len(names) == 0 {
			err = fmt.Errorf("no %s file in %s", backupSuffix, at)
		}
		if err == nil {
			at = slices.Max(names)
		}
	}
	if err != nil {
		return nil, &exitError{exitData, err}
	}
	f, err := os.Open(at)
	if err != nil {
		return nil, &exitError{exitData, err}
	}
	return f, nil
}

func verifyBackup(c *call) error {
	from, name := c.in, ""
	if c.words[0] != "-" {
		f, err := openBackup(c.words[0])
		if err != nil {
			return err
		}
		defer f.Close()
		from, name = f, f.Name()
	}
	v, err := archive.Verify(from)
	if err != nil {
		return &exitError{exitData, err}
	}
	return showBackup(c, name, v)
}

// restoreBackup reads a backup twice: nothing is sent of one that is not whole.
func restoreBackup(c *call) error {
	pick, err := pickQueues(c, "")
	if err != nil {
		return err
	}
	if c.words[0] == "-" {
		return usageError("the whole backup is checked before anything is restored: restore needs a file or a folder")
	}
	f, err := openBackup(c.words[0])
	if err != nil {
		return err
	}
	defer f.Close()
	v, err := archive.Verify(f)
	if err != nil {
		return &exitError{exitData, err}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out, in := io.Pipe()
	defer out.Close()
	go func() {
		in.CloseWithError(v.Excerpt(f, &counter{to: in, n: &c.moved}, func(s archive.Section) bool { return pick(string(s.VHost), string(s.Name)) }))
	}()
	c.say("Restoring " + f.Name() + " ...")
	end := c.progress(c.movedBytes("sent"))
	defer end()
	done, err := send(c, "/api/quorate/restore", out)
	if err != nil {
		return repeatable(err)
	}
	return c.show(done, "", field{"definitions", done.Definitions}, field{"queues", done.Queues}, field{"messages", done.Messages},
		field{"already_there", done.Had}, field{"refused", done.Refused})
}

// stream posts a body of any length and returns an answer of any length, whose body the
// caller closes.
func (c *client) stream(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, body)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(c.user, c.password)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, &exitError{exitUnavailable, fmt.Errorf("the node does not answer: %w", err)}
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, &exitError{exitUnavailable, fmt.Errorf("the node's answer was cut off: %w", err)}
	}
	return nil, c.refused(res.StatusCode, path, answer)
}

// repeatable says of what may succeed at the next try that it is safe to try.
func repeatable(err error) error {
	if code := exitCodeOf(err); code == exitUnavailable || code == exitTemporary {
		return fmt.Errorf("%w (run it again: nothing is restored twice)", err)
	}
	return err
}

// folderVerbs are those of the server's program, which alone knows the data format of its version.
func folderVerbs() []verb {
	return []verb{
		{name: "recover", arguments: "--data-dir DIR [--also DIR ...] [--yes] [--json]", maxArguments: -1, passes: true, run: func(c *call) error { return onDataFolder(c, "recover") },
			about: "turns a stopped node into the whole cluster when a majority is lost for good", more: " Without --yes it only shows what may be lost.", example: "--data-dir /var/lib/quorate"},
		{name: "log", about: "reads the log in the data folder of a stopped node", verbs: []verb{
			{name: "explain", arguments: "--data-dir DIR --queue NAME (--message-id ID | --message NUMBER) [--vhost VHOST] [--json]", maxArguments: -1, passes: true, run: func(c *call) error { return onDataFolder(c, "log", "explain") },
				about: "shows what happened to messages of a queue, as far as the log of a stopped node shows", example: "--data-dir /var/lib/quorate --queue orders --message-id 4711"},
		}},
	}
}

// onDataFolder runs the server's program on a data folder, however long it takes. It is searched for beside this program
// first.
func onDataFolder(c *call, verb ...string) error {
	program := "quorate"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), program); isProgram(beside) {
			program = beside
		}
	}
	p := exec.Command(program, append(verb, c.words...)...)
	p.Stdin, p.Stdout, p.Stderr = c.in, c.out, c.errOut
	err := p.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return errReported
	}
	return fmt.Errorf("reading a data folder requires the server's program: %w", err)
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
