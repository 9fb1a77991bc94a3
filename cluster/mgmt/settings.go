package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// settings serves the cluster-wide settings.
type settings struct{ settings Settings }

func (st settings) list(w *responder, _ *request) {
	w.answer(http.StatusOK, st.settings.Settings())
}

func (st settings) put(w *responder, r *request) {
	var body api.SettingValue
	d := jsonIn(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Value == nil {
		w.answer(http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: `the body must be {"value": NUMBER}`})
		return
	}
	st.change(w, r, body.Value)
}

func (st settings) remove(w *responder, r *request) { st.change(w, r, nil) }

func (st settings) change(w *responder, r *request, value *int64) {
	w.changed(st.settings.PutSetting(r.Context(), r.PathValue("name"), value), false)
}

// effective answers with the settings that the node runs with.
func (b *Backend) effective(w *responder, _ *request) {
	if b.Effective == nil {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, b.Effective())
}
