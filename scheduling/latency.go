package scheduling

// LatencyPrediction is what this request's latency on one endpoint is predicted to be.
type LatencyPrediction struct {
	// TTFTMs is the time from the pick to the first token, in ms; positive. It is the median: half of such requests take longer.
	// Where WholeResponse is set it is the time to the end of the response.
	TTFTMs float64
	// TPOTMs is the time per output token after the first, in ms, the median; 0 where it is not predicted.
	TPOTMs float64
	// TTFTP90Ms and TPOTP90Ms are what nine of ten such requests stay below, in ms; 0 where they are not predicted.
	TTFTP90Ms, TPOTP90Ms float64
	// Confidence says how far the prediction is measured rather than assumed, 0 to 1.
	Confidence float64
	// TTFTHeadroomMs and TPOTHeadroomMs are by how much the 90th percentile stays below the request's objective, in ms;
	// negative where it exceeds it, 0 where LatencyObjective has none.
	TTFTHeadroomMs, TPOTHeadroomMs float64
	// WaitMs and PrefillMs are the parts of TTFTMs that the work ahead and the request's own prompt make, in ms, and Residual is
	// the factor that comes on top: TTFTMs = (WaitMs + PrefillMs) × Residual.
	WaitMs, PrefillMs, Residual float64
	// WholeResponse says that TTFTMs is no time to a first token: the producer was told that answers are not streamed.
	WholeResponse bool
}

// LatencyObjective is what a request asks of its latency. One value a request; absent where it asks nothing.
type LatencyObjective struct {
	// TTFTMs is the longest time to the first token, in ms; 0 where the request does not say.
	TTFTMs float64
	// TPOTMs is the longest time per output token after the first, in ms; 0 where the request does not say.
	TPOTMs float64
}
