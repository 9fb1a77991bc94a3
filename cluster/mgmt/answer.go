package mgmt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// proposeWait bounds how long a change of the catalog may take.
const proposeWait = 5 * time.Second

// responder answers one request.
type responder struct {
	http.ResponseWriter
	log    *slog.Logger
	script bool // the browser must not ask its user for a password: the page does
}

// answer writes a JSON value. A failure is sent with its length, so that it is whole for a client whose body is still
// being read.
func (w *responder) answer(status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	if status < http.StatusBadRequest {
		w.WriteHeader(status)
		w.written(json.NewEncoder(w).Encode(body))
		return
	}
	var text bytes.Buffer
	w.written(json.NewEncoder(&text).Encode(body))
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(status)
	_, err := text.WriteTo(w)
	w.written(err)
}

// export answers with JSON whose texts are as they were written: others, which may be shown somewhere, have < and >
// as escapes.
func (w *responder) export(body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	w.written(e.Encode(body))
}

// written notes why an answer is not.
func (w *responder) written(err error) {
	if err != nil {
		w.log.Debug("answer not written", "error", err)
	}
}

func (w *responder) badRequest(reason string) {
	w.answer(http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: reason})
}

func (w *responder) notFound() {
	w.answer(http.StatusNotFound, api.Failure{Error: "Object Not Found", Reason: "Not Found"})
}

func (w *responder) noVHost() {
	w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: "vhost_not_found"})
}

// failed answers a request that ended with an error: the caller's fault if it is a refusal,
// otherwise the cluster's.
func (w *responder) failed(err error) {
	var refusal *fsm.Refusal
	switch {
	case !errors.As(err, &refusal):
		w.unavailable(err)
	case refusal.Kind == fsm.NotFoundKind:
		w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: refusal.Text})
	case refusal.Kind == fsm.AccessRefused, refusal.Kind == fsm.NotAllowed:
		w.unauthorized("not_authorised", "Access refused.")
	default:
		w.badRequest(refusal.Text)
	}
}

func (w *responder) unavailable(err error) {
	w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
}

func (w *responder) unauthorized(what, reason string) {
	if !w.script {
		w.Header().Set("WWW-Authenticate", `Basic realm="quorate"`)
	}
	w.answer(http.StatusUnauthorized, api.Failure{Error: what, Reason: reason})
}

// invalid answers a parameter that was refused, in the form that clients show.
func (w *responder) invalid(err error) {
	var refusal *fsm.Refusal
	if errors.As(err, &refusal) && refusal.Kind == fsm.Precondition {
		w.badRequest("Validation failed\n\n" + refusal.Text + "\n")
		return
	}
	w.failed(err)
}

// propose commits catalog commands and returns the first refusal among the results.
func propose(ctx context.Context, to Catalog, commands ...*logpb.CatalogCommand) error {
	ctx, cancel := context.WithTimeout(ctx, proposeWait)
	defer cancel()
	results, err := to.Propose(ctx, commands...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if err := catalog.Refused(r); err != nil {
			return err
		}
	}
	return nil
}

// changed answers a PUT or DELETE; created: it has created something.
func (w *responder) changed(err error, created bool) {
	switch {
	case err != nil:
		w.failed(err)
	case created:
		w.WriteHeader(http.StatusCreated)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// body is the JSON object in a request. Keys with the value null count as missing.
type body map[string]any

// body reads the request's object, or answers the request. An empty body is an empty object.
func (w *responder) body(r *request) (body, bool) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		w.unread(err)
		return nil, false
	}
	if len(strings.TrimSpace(string(raw))) == 0 {
		return body{}, true
	}
	value, err := decode(raw)
	if err != nil {
		w.badRequest("not_json")
		return nil, false
	}
	switch v := value.(type) {
	case map[string]any:
		for key, value := range v {
			if value == nil {
				delete(v, key)
			}
		}
		r.auditBody(v)
		return v, true
	case string:
		w.badRequest("invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?")
	default:
		w.badRequest("invalid payload: the request body is not a JSON object")
	}
	return nil, false
}

// unread answers a request whose body could not be read.
func (w *responder) unread(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.answer(http.StatusRequestTimeout, api.Failure{Error: "request_timeout", Reason: "timed out reading the request body"})
		return
	}
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		w.answer(http.StatusRequestEntityTooLarge, api.Failure{Error: "payload_too_large", Reason: fmt.Sprintf("the body is longer than %d bytes", long.Limit)})
		return
	}
	w.badRequest("the request body is truncated")
}

// mark is the byte order mark that some editors and shells write before JSON.
const mark = "\ufeff"

// jsonIn reads JSON, without a byte order mark before it.
func jsonIn(from io.Reader) *json.Decoder {
	in := bufio.NewReader(from)
	if start, _ := in.Peek(len(mark)); string(start) == mark {
		_, _ = in.Discard(len(mark)) // which is there
	}
	return json.NewDecoder(in)
}

// decode reads one JSON value and keeps numbers as written.
func decode(raw []byte) (any, error) {
	d := jsonIn(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return value, nil
}

// missing answers a body that lacks keys.
func (w *responder) missing(b body, keys ...string) bool {
	var list []string
	for _, key := range keys {
		if _, ok := b[key]; !ok {
			list = append(list, "{key_missing,"+key+"}")
		}
	}
	if len(list) > 0 {
		w.badRequest("[" + strings.Join(list, ",") + "]")
	}
	return len(list) > 0
}

// text returns a string of the body; empty if it is missing.
func (b body) text(key string) (string, error) {
	switch v := b[key].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	default:
		return "", fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be a string, actually was %v", key, v))
	}
}

// flag returns a boolean of the body, which may be given as a string; def if it is missing.
func (b body) flag(key string, def bool) (bool, error) {
	switch v := b[key]; v {
	case nil:
		return def, nil
	case true, "true":
		return true, nil
	case false, "false":
		return false, nil
	default:
		return false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("[\"not_boolean\",%q]", fmt.Sprint(v)))
	}
}

// object returns an object of the body; empty if it is missing.
func (b body) object(key string) (map[string]any, error) {
	switch v := b[key].(type) {
	case nil:
		return nil, nil
	case map[string]any:
		return v, nil
	default:
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be an object, actually was %v", key, v))
	}
}

// words returns a list of tags: an array of strings, or a string with commas.
func (b body) words(key string) ([]string, error) {
	var list []string
	add := func(word string) {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	switch v := b[key].(type) {
	case nil:
	case string:
		for word := range strings.SplitSeq(v, ",") {
			add(word)
		}
	case []any:
		for _, e := range v {
			word, ok := e.(string)
			if !ok {
				return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be strings, actually was %v", key, e))
			}
			add(word)
		}
	default:
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be a string or a list, actually was %v", key, v))
	}
	return list, nil
}

// read decodes the request's body, which may be empty, or answers the request.
func (w *responder) read(r *request, to any) bool {
	d := jsonIn(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil && err != io.EOF {
		w.badRequest("not_json")
		return false
	}
	return true
}
