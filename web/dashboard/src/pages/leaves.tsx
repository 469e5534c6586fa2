import { Section, useTitle } from "../ui";

// Leaves states what the protocol transmits. It does not measure anything.
export function Leaves() {
  useTitle("What leaves a client");
  return (
    <>
      <h1>What leaves a client</h1>
      <p class="lead">The protocol between agents and this server has no field for readings or forecasts. This is a statement about the protocol, not a measurement. Updates reveal something about readings.</p>
      <Section title="What an agent sends">
        <ul class="prose">
          <li>names of its clients, names of their inputs, the length of a step, its version and its clock</li>
          <li>changes of the shared weights, alone or summed over its clients, with numbers of examples and steps and the training loss</li>
          <li>in rounds that evaluate: the sum over clients of the MAE relative to the reference</li>
          <li>once a week and client, rounded: relative MAE, coverage, sources of forecasts, codes of problems</li>
        </ul>
      </Section>
      <Section title="What stays">
        <ul class="prose">
          <li>every reading, every forecast, weather, and the personal layers of a model</li>
        </ul>
      </Section>
      <Section title="What updates reveal">
        <p>Updates of weights are computed from readings and reveal something about them. Whoever runs this server sees each update. Agents decline plans from whose updates readings could be computed easily. The page docs/privacy.md of the documentation says what remains.</p>
        <p class="note">Read docs/architecture.md and proto/loadstar/v1/agent.proto for all messages, and docs/dashboard.md for this page.</p>
      </Section>
    </>
  );
}
