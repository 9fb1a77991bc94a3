package mgmt

import "net/http"

func (s *Server) status(w http.ResponseWriter, _ *request) {
	s.answer(w, http.StatusOK, s.node.Status())
}

func (s *Server) clock(w http.ResponseWriter, _ *request) {
	s.answer(w, http.StatusOK, s.node.Clock())
}
