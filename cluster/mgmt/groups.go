package mgmt

import (
	"encoding/base64"
	"net/http"
)

// groups lists the groups of a queue's messages by their ids.
func (ms messages) groups(w *responder, r *request) {
	after, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("after"))
	limit, problem := pageLimit(r)
	switch {
	case err != nil:
		w.badRequest("after must be the value next of a page")
		return
	case problem != "":
		w.badRequest(problem)
		return
	}
	q := w.readable(r)
	if q == nil {
		return
	}
	page, err := ms.messages.GroupsAfter(r.Context(), q, string(after), limit)
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, page)
}
