package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

func messageFileVerbs() []verb {
	return []verb{
		{
			name: "export_queue", alias: "export-queue", arguments: "QUEUE FILE|-", least: 2, maxArguments: 2, timeout: backupLimit, run: exportQueue,
			about:   "writes the messages of a queue as lines of JSON to a file, or to - (the output), and changes nothing",
			options: []option{{"rate", "maximum rate, in `BYTES` per second", ""}}, example: "orders orders.ndjson",
		},
		{
			name: "import_queue", alias: "import-queue", arguments: "QUEUE FILE", least: 2, maxArguments: 2, timeout: backupLimit, run: importQueue,
			about: "imports messages from such a file into a queue", more: " The same command resumes what was interrupted: no message of a file is imported twice.",
			example: "orders orders.ndjson",
		},
	}
}

func exportQueue(c *call) error {
	query, err := c.rate()
	if err != nil {
		return err
	}
	name := c.words[1]
	if name == "-" {
		_, err := receiveLines(c, query, c.out)
		return err
	}
	var end lastLine
	if err := writeWhole(name, func(to io.Writer) (err error) {
		end, err = receiveLines(c, query, to)
		return err
	}); err != nil {
		return err
	}
	return c.show(end, "", field{"file", name}, field{"messages", end.Messages}, field{"settled", end.Settled})
}

// rate is the query of the option --rate.
func (c *call) rate() (query string, err error) {
	if !c.given("rate") {
		return "", nil
	}
	if _, err := strconv.ParseUint(c.option("rate"), 10, 40); err != nil {
		return "", usageError("--rate must be a number of bytes per second, not %q", c.option("rate"))
	}
	return "?rate=" + url.QueryEscape(c.option("rate")), nil
}

// lastLine is what the last line of an export says.
type lastLine struct {
	Messages uint64 `json:"messages"`
	Settled  uint64 `json:"settled"`
}

// receiveLines copies the node's answer. It is whole if its last line says so.
func receiveLines(c *call, query string, to io.Writer) (lastLine, error) {
	res, err := c.client.stream(c, path("quorate", "queues", c.options.vhost, c.words[0], "export")+query, nil)
	if err != nil {
		return lastLine{}, err
	}
	defer res.Body.Close()
	end := c.progress(c.movedBytes("received"))
	defer end()
	last := &tail{}
	if _, err := io.Copy(io.MultiWriter(&counter{to: to, n: &c.moved}, last), res.Body); err != nil {
		return lastLine{}, &exitError{exitTemporary, fmt.Errorf("the export was cut off: %w", err)}
	}
	var x struct {
		End    *lastLine `json:"end"`
		Failed string    `json:"failed"`
	}
	err = json.Unmarshal(last.line, &x)
	switch {
	case x.Failed != "":
		return lastLine{}, &exitError{exitTemporary, fmt.Errorf("the export was cut off: %s (run it again)", x.Failed)}
	case err != nil || x.End == nil || last.lines != x.End.Messages+2:
		return lastLine{}, &exitError{exitTemporary, errors.New("the export was cut off: lines are missing (run it again)")}
	}
	return *x.End, nil
}

// tail counts lines, and keeps the beginning of the last one.
type tail struct {
	lines uint64
	line  []byte
	ended bool // the line is complete
}

// tailSize is how much of a line is kept: a last one is short.
const tailSize = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if t.ended {
			t.line, t.ended = t.line[:0], false
		}
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		t.line = append(t.line, part[:min(len(part), tailSize-len(t.line))]...)
		if b, t.ended = rest, ended; ended {
			t.lines++
		}
	}
	return n, nil
}

// importQueue reads a file twice: nothing is imported of one in which a line is wrong.
// The queue knows the file by its digest.
func importQueue(c *call) error {
	name := c.words[1]
	if name == "-" {
		return usageError("the whole file is checked before anything is imported: import_queue needs a file")
	}
	f, err := os.Open(name)
	if err != nil {
		return &exitError{exitData, err}
	}
	defer f.Close()
	at, sum := path("quorate", "queues", c.options.vhost, c.words[0], "import"), sha256.New()
	if _, err := send(c, at+"?check=true", io.TeeReader(f, sum)); err != nil {
		return fmt.Errorf("nothing was imported: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	c.say("Importing " + name + " into queue " + c.words[0] + " ...")
	end := c.progress(c.movedBytes("sent"))
	done, err := send(c, at+"?id="+hex.EncodeToString(sum.Sum(nil)), &countingReader{f, c})
	if end(); err != nil {
		return repeatable(err)
	}
	err = c.show(done, "", field{"messages", done.Messages}, field{"already_there", done.Had}, field{"refused", done.Refused})
	if err == nil && done.Refused > 0 {
		err = &exitError{exitFailed, fmt.Errorf("the queue has refused %d messages", done.Refused)}
	}
	return err
}

// send posts messages and returns the answer.
func send(c *call, at string, messages io.Reader) (done api.Restored, err error) {
	res, err := c.client.stream(c, at, messages)
	if err != nil {
		return done, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&done); err != nil {
		return done, fmt.Errorf("the node's answer could not be parsed: %w", err)
	}
	return done, nil
}

// countingReader counts what is read for the progress.
type countingReader struct {
	from io.Reader
	c    *call
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.c.moved.Add(int64(n))
	return n, err
}
