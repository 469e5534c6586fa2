import "./app.css"; document.getElementById("app")!.textContent = "The page of the server is being built.";
