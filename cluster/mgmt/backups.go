package mgmt

import (
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// maxRate bounds what a request may ask for, bytes in a second.
const maxRate = 1 << 40

// backups serves backups of the whole cluster.
type backups struct{ backups Backups }

// rate is how many bytes of an answer may be sent in a second; 0: as many as by default.
func (w *responder) rate(r *request) (rate int64, ok bool) {
	text := r.URL.Query().Get("rate")
	if text == "" {
		return 0, true
	}
	rate, err := strconv.ParseInt(text, 10, 64)
	if err != nil || rate < 1 || rate > maxRate {
		w.badRequest("rate must be a number of bytes per second from 1 to " + strconv.Itoa(maxRate))
		return 0, false
	}
	return rate, true
}

// create answers with a backup, as a stream. If it fails on the way, the stream is not
// whole, and says why.
func (b backups) create(w *responder, r *request) {
	rate, ok := w.rate(r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	counted := &countingWriter{to: w}
	err := b.backups.Backup(r.Context(), counted, rate)
	r.detail = map[string]any{"bytes": counted.n}
	if err != nil {
		r.detail["error"] = err.Error()
		w.log.Warn("backup failed", "error", err)
	}
}

// export answers with the messages of a queue as lines. If it fails on the way, the
// last one says why.
func (b backups) export(w *responder, r *request) {
	rate, ok := w.rate(r)
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if !ok || !w.hasQueue(r, vhost, name) {
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	counted := &countingWriter{to: w}
	err := b.backups.Export(r.Context(), counted, vhost, name, rate)
	r.detail = map[string]any{"bytes": counted.n}
	switch {
	case err == nil:
	case counted.n == 0:
		w.failed(err)
	default:
		r.detail["error"] = err.Error()
		w.log.Warn("export failed", "queue", name, "vhost", vhost, "error", err)
	}
}

// maxImportID bounds the id of an import, in bytes.
const maxImportID = 64

// bring brings the lines in the request's body to a queue, or only checks them.
func (b backups) bring(w *responder, r *request) {
	vhost, name, q := r.PathValue("vhost"), r.PathValue("name"), r.URL.Query()
	id, err := hex.DecodeString(q.Get("id"))
	if err != nil || len(id) > maxImportID {
		w.badRequest("id must have at most " + strconv.Itoa(2*maxImportID) + " hexadecimal digits")
		return
	}
	if !w.hasQueue(r, vhost, name) {
		return
	}
	body := &patientBody{r.Body, http.NewResponseController(w)}
	var done api.Restored
	if q.Get("check") == "true" {
		done.Messages, err = b.backups.CheckLines(body)
	} else {
		done, err = b.backups.Import(r.Context(), body, vhost, name, id)
	}
	r.detail = map[string]any{"messages": done.Messages}
	w.result(done, err)
}

// restore brings back what the request's body holds of a backup. The body may have any
// length: it is read as it is used.
func (b backups) restore(w *responder, r *request) {
	done, err := b.backups.Restore(r.Context(), &patientBody{r.Body, http.NewResponseController(w)})
	r.detail = map[string]any{"queues": done.Queues, "messages": done.Messages}
	w.result(done, err)
}

// countingWriter counts what it passes on.
type countingWriter struct {
	to io.Writer
	n  int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

// patientBody gives each piece of a body its own time.
type patientBody struct {
	from       io.Reader
	controller *http.ResponseController
}

func (p *patientBody) Read(b []byte) (int, error) {
	_ = p.controller.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails in tests without a socket
	return p.from.Read(b)
}
