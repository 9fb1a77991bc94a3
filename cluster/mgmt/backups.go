package mgmt

import (
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxRate bounds what a request may ask for, bytes in a second.
const maxRate = 1 << 40

// backups serves backups of the whole cluster.
type backups struct{ backups Backups }

// create answers with a backup, as a stream. If it fails on the way, the stream is not
// whole, and says why.
func (b backups) create(w *responder, r *request) {
	rate := int64(0)
	if text := r.URL.Query().Get("rate"); text != "" {
		var err error
		if rate, err = strconv.ParseInt(text, 10, 64); err != nil || rate < 1 || rate > maxRate {
			w.badRequest("rate is a number of bytes in a second, from 1 to " + strconv.Itoa(maxRate))
			return
		}
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

// restore brings back what the request's body holds of a backup. The body may have any
// length: it is read as it is used.
func (b backups) restore(w *responder, r *request) {
	done, err := b.backups.Restore(r.Context(), &patientBody{r.Body, http.NewResponseController(w)})
	r.detail = map[string]any{"queues": done.Queues, "messages": done.Messages}
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, done)
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
