import "./app.css"; document.getElementById("app")!.textContent = "The page of the agent is being built.";
