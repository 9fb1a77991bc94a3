package mgmt

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// publish publishes one message and answers once it is confirmed.
func (ss sessions) publish(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "properties", "routing_key", "payload", "payload_encoding") {
		return
	}
	vhost := r.PathValue("vhost")
	if !r.sees(vhost) {
		w.notFound()
		return
	}
	name, ok := r.exchange()
	if !ok {
		w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: "exchange_not_found"})
		return
	}
	m, err := b.outgoing()
	if err != nil {
		w.failed(err)
		return
	}
	if why := ss.objects.Blocked(); why != "" {
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "publishing is blocked: " + why})
		return
	}
	m.Exchange = name
	ctx, cancel := context.WithTimeout(r.Context(), objectWait)
	defer cancel()
	routed, err := ss.objects.Publish(ctx, r.user.GetName(), vhost, m)
	switch refusal := (*fsm.Refusal)(nil); {
	case errors.As(err, &refusal) && refusal.Kind == fsm.Precondition:
		w.badRequest("406 PRECONDITION_FAILED - " + refusal.Text)
	case errors.As(err, &refusal) && refusal.Kind == fsm.Unavailable:
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: refusal.Text})
	case err != nil:
		w.failed(err)
	default:
		w.answer(http.StatusOK, api.Published{Routed: routed})
	}
}

// outgoing reads a message from a body.
func (b body) outgoing() (m Outgoing, err error) {
	properties, list := b["properties"].([]any)
	if !list || len(properties) > 0 { // an empty list is no properties
		object, err := b.object("properties")
		if err != nil {
			return m, err
		}
		m.Properties = tableOf(object)
	}
	if m.RoutingKey, err = b.text("routing_key"); err != nil {
		return m, err
	}
	payload, err := b.text("payload")
	if err != nil {
		return m, err
	}
	switch encoding := b.word("payload_encoding"); encoding {
	case "string":
		m.Body = []byte(payload)
	case "base64":
		if m.Body, err = base64.StdEncoding.DecodeString(payload); err != nil {
			err = fsm.Refuse(fsm.Precondition, "payload is not base64: "+err.Error())
		}
	default:
		err = fsm.Refuse(fsm.Precondition, "unsupported encoding: "+encoding)
	}
	return m, err
}
